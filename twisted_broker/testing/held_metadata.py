"""A broker that does not follow the metadata, as if its fetches waited for their answers.

Owns `HeldMetadata`. What it knew it goes on saying: old leaders, old topics; its heartbeats go on.

Source: our own. Not here: following (`cluster/observer.py`).
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred


class HeldMetadata:
    """`observer`: the broker's. Its round that is under way ends before it is held."""

    def __init__(self, observer: Any) -> None:
        self._observer, self._gate = observer, Deferred[None]()
        self.is_held = False
        observer._round = self._wait

    async def _wait(self) -> bool:
        self.is_held = True
        await self._gate
        return True

    def let_go(self) -> None:
        """It follows again."""
        del self._observer._round
        self._gate.callback(None)
