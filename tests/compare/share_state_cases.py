"""Cases: the share coordinator, which other brokers ask (KIP-932).

Each version writes the state of a group of its own.
"""

from __future__ import annotations

from typing import Any

from tests.compare.side import Side

EMPTY_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


class State:
    """The states of a group's share partitions of one topic."""

    def __init__(self, side: Side) -> None:
        self.side, self.topic, self.group = side, side.topic(partitions=2), side.name("sg")
        side.settled(
            "FindCoordinator",
            lambda answer: not answer.coordinators[0].error_code,
            key_type=2,
            coordinator_keys=[f"{self.group}:{EMPTY_ID}:0"],
        )
        side.settled(
            "InitializeShareGroupState",
            lambda answer: not answer.results[0].partitions[0].error_code,
            **self.fields({"state_epoch": 0, "start_offset": 3}, group=side.name("warm")),
        )

    def fields(
        self, *named: dict[str, Any], group: str | None = None, topic_id: Any = None
    ) -> dict[str, Any]:
        topic_id = self.side.id_of(self.topic) if topic_id is None else topic_id
        partitions = [{"partition": 0} | each for each in named]
        return {
            "group_id": self.group if group is None else group,
            "topics": [{"topic_id": topic_id, "partitions": partitions}],
        }

    def initialize(self, state_epoch: int, start_offset: int = -1) -> None:
        named = {"state_epoch": state_epoch, "start_offset": start_offset}
        self.side.latest("InitializeShareGroupState", **self.fields(named))

    def read(self, leader_epoch: int) -> None:
        self.side.latest("ReadShareGroupState", **self.fields({"leader_epoch": leader_epoch}))

    def write(
        self, state_epoch: int, leader_epoch: int, start: int, *batches: Any
    ) -> dict[str, Any]:
        names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
        return self.fields(
            {
                "state_epoch": state_epoch,
                "leader_epoch": leader_epoch,
                "start_offset": start,
                "delivery_complete_count": 2,
                "state_batches": [dict(zip(names, each, strict=True)) for each in batches],
            }
        )


def _named_wrong(state: State, named: dict[str, Any]) -> None:
    ask, fields = state.side.ask, state.fields
    ask("no topics", group_id=state.group, topics=[])
    ask("no partitions", **fields())
    ask("no group", **fields(named, group=""))
    ask("a negative partition", **fields(named | {"partition": -1}))
    ask("no such partition", **fields(named | {"partition": 7}))
    ask("no such topic", **fields(named, topic_id=b"\1" * 16))
    ask("not initialised", **fields(named | {"partition": 1}))


def initialize_share_group_state(side: Side, version: int) -> None:
    state = State(side)
    _named_wrong(state, {"state_epoch": 1, "start_offset": -1})
    for label, epoch, start in (
        ("first", 5, -1),
        ("again", 5, 7),
        ("an epoch behind", 4, 7),
        ("no epoch", -1, 9),
        ("an epoch ahead", 6, -1),
    ):
        side.ask(label, **state.fields({"state_epoch": epoch, "start_offset": start}))
        side.ask(
            f"{label}, and another",
            **state.fields(
                {"state_epoch": epoch, "start_offset": start},
                {"partition": 9, "state_epoch": epoch, "start_offset": start},
            ),
        )


def read_share_group_state(side: Side, version: int) -> None:
    state = State(side)
    _named_wrong(state, {"leader_epoch": 0})
    state.initialize(5)

    def read(label: str, leader_epoch: int) -> None:
        side.ask(label, **state.fields({"leader_epoch": leader_epoch}))

    for epoch in (-1, 0, 3, 2, 3):
        read(f"fresh, leader epoch {epoch}", epoch)
    side.latest(
        "WriteShareGroupState",
        **state.write(5, 3, 10, (10, 19, 0, 1), (12, 13, 2, 1), (30, 31, 4, 2)),
    )
    read("written", 3)
    side.latest("WriteShareGroupState", **state.write(5, 3, -1, (14, 25, 0, 2), (26, 29, 4, 2)))
    read("written again", 4)
    side.latest("WriteShareGroupState", **state.write(-1, -1, 16))
    read("moved on", 4)
    state.initialize(7, 8)
    for epoch in (3, 4, 5):
        read(f"begun anew, leader epoch {epoch}", epoch)


def write_share_group_state(side: Side, version: int) -> None:
    state = State(side)
    named = {"state_epoch": 5, "leader_epoch": 3, "start_offset": 0, "state_batches": []}
    _named_wrong(state, named)
    state.initialize(5)
    state.read(3)
    for label, state_epoch, leader_epoch in (
        ("as they are", 5, 3),
        ("leader behind", 5, 2),
        ("state behind", 4, 3),
        ("both behind", 4, 2),
        ("none", -1, -1),
        ("ahead", 9, 8),
        ("as they were", 5, 3),
    ):
        side.ask(label, **state.write(state_epoch, leader_epoch, 10, (10, 12, 2, 1)))


def delete_share_group_state(side: Side, version: int) -> None:
    state = State(side)
    _named_wrong(state, {})
    state.initialize(5)
    side.ask("what is there", **state.fields({}))
    side.ask("what was there", **state.fields({}))


def read_share_group_state_summary(side: Side, version: int) -> None:
    state = State(side)
    _named_wrong(state, {"leader_epoch": 0})
    state.initialize(5)
    for epoch in (-1, 0, 3):
        side.ask(f"fresh, leader epoch {epoch}", **state.fields({"leader_epoch": epoch}))
    state.read(3)
    side.latest("WriteShareGroupState", **state.write(5, 3, 10, (10, 12, 2, 1)))
    for epoch in (2, 3, 9):
        side.ask(f"written, leader epoch {epoch}", **state.fields({"leader_epoch": epoch}))
    state.initialize(6, 4)
    side.ask("begun anew", **state.fields({"leader_epoch": -1}))
