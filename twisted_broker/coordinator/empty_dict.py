"""One empty dict for all who hold nothing: each of a million idle groups would have ten of its own.
Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns `EMPTY_DICT`. Reading, `pop` with a default and `clear` work as with any dict.

1. It takes no entry: an owner that has one to hold takes a dict of its own first, and may give that
   up when it is empty.

Source: our own.
"""

from __future__ import annotations

from typing import Any, NoReturn


class _EmptyDict(dict[Any, Any]):
    __slots__ = ()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("the dict of all who hold nothing takes no entry")

    __setitem__ = setdefault = update = __ior__ = _refuse


EMPTY_DICT: dict[Any, Any] = _EmptyDict()
