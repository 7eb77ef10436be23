"""The mark of a compiled class that interpreted classes may extend: those of the test kit, and of
tests. Without it mypyc lets none.

mypyc reads it as `mypy_extensions.mypyc_attr`; that package is not needed to run plain Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_: object):
        """The decorator as plain Python sees it: it changes nothing."""
        return lambda cls: cls
