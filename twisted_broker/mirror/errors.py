"""The errors that end a mirror, or one of its topics: one line each, with a way on.

Owns `MirrorError` and `SourceLost`. Not here: what is tried again.
"""

from __future__ import annotations

from twisted_broker.interfaces import TopicPartition


class MirrorError(Exception):
    """Nothing that trying again would mend."""


class SourceLost(MirrorError):
    """The source has another history from `offset` on (-1: not known where) than what was
    mirrored, up to `mirrored`.
    """

    def __init__(self, name: TopicPartition, offset: int, mirrored: int) -> None:
        self.name, self.offset, self.mirrored = name, offset, mirrored
        where = f"it differs from offset {offset} on" if offset >= 0 else "the last batch differs"
        super().__init__(
            f"{name}: the source lost records that were mirrored: {where}, mirrored is up to "
            f"{mirrored}; the copy is left as it is. To drop what the source lost use "
            "--follow-loss, to begin anew delete the topic in the target"
        )
