"""Why records of a share group are not given out."""

from typing import Any

import pytest

from tests.share.share_broker import Member, ShareBroker
from twisted_broker.share.share_explanation import MOST_NAMED
from twisted_broker.status.view import BrokerView
from twisted_broker.wire.schema import run_whole


@pytest.fixture
def broker():
    made = ShareBroker()
    yield made
    made.stop()


def told(broker):
    """What this broker says of the group."""
    found: list[dict[str, Any]] = []
    view = BrokerView(lambda: broker.broker.parts)
    run_whole(view.describe_group("g", found))
    return found[0] if found else None


def of_partition(broker, number=0):
    return told(broker)["share_partitions"][number]


def test_who_holds_records_and_until_when(broker):
    broker.produce(3)
    assert Member(broker).take(0) == "0-2x1"
    row = of_partition(broker)
    (held,) = row.pop("ranges")
    until_ms = held.pop("locked_until_ms")
    assert held == {"first": 0, "last": 2, "deliveries": 1, "member": "m1"}
    left_s = (until_ms - broker.runtime.wall_ms()) / 1000
    assert 29 < left_s <= 30
    assert row == {
        "topic": "t",
        "partition": 0,
        "leader_epoch": 0,
        "start_offset": 0,
        "end_offset": 2,
        "locked": 3,
        "why": [
            f"offsets 0 to 2 are locked by member m1 for {left_s:.1f} s more; delivery 1 of 5",
            "there are no records to give out: the high watermark is 3",
        ],
    }


def test_what_was_given_back_waits_for_its_next_delivery(broker):
    broker.produce(3)
    member = Member(broker)
    member.take(0)
    member.acknowledge("0 release, 1 accept")
    why = of_partition(broker)["why"]
    assert why[0] == "offset 0 waits to be delivered again, after delivery 1 of 5"
    assert why[1].startswith("offset 2 is locked by member m1 for ")
    assert len(why) == 2


def test_many_ranges_are_counted(broker):
    broker.produce(40)
    member = Member(broker)
    member.take(0)
    member.acknowledge(",".join(f"{number} release" for number in range(0, 40, 2)))
    row = of_partition(broker)
    assert len(row["ranges"]) == MOST_NAMED
    assert row["locked"] == 20
    assert row["why"][MOST_NAMED] == f"and {40 - MOST_NAMED} more ranges of offsets"


def test_a_window_that_is_full():
    broker = ShareBroker(group_share_partition_max_record_locks="100")
    try:
        broker.produce(100, 1)
        Member(broker).take(0)
        assert of_partition(broker)["why"][-1] == (
            "nothing more is given out: 100 offsets are in flight "
            "(group.share.partition.max.record.locks=100), and none of them was given back"
        )
    finally:
        broker.stop()


def test_a_share_fetch_that_waits_is_explained_with_its_partition(broker):
    broker.produce(1)
    member = Member(broker)
    member.take(0)
    waiting = member.begin_fetch(0, max_wait_ms=1000)
    broker.settle()
    view = BrokerView(lambda: broker.broker.parts)
    partition = broker.broker.parts.replica_manager.partitions["t", 0]
    (found,) = view.explanation(partition, view.now()).waiting
    assert (found.request, found.needs, found.has) == ("ShareFetch", 1, 0)
    assert found.why.startswith("member m1 of the share group g wants records from 1 on; ")
    broker.run(waiting)


def test_a_group_without_share_partitions_is_not_known(broker):
    assert told(broker) is None
