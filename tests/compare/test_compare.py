"""The comparison itself: it sees what differs, and nothing between two of our own brokers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.compare.allowed import ALLOWED, Allowed
from tests.compare.differences import ABSENT, Difference, compared, flat
from tests.compare.run import SETTINGS, cases, compare, listed, main, versions_of
from tests.compare.side import Side, built
from tests.compat.broker_process import BrokerProcess
from twisted_broker.api.routes import ROUTES
from twisted_broker.wire.messages.list_offsets import ListOffsetsRequest
from twisted_broker.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)


def same(value: object) -> object:
    return value


def test_every_api_that_clients_are_served_has_its_cases() -> None:
    """A new row of the API table comes with its comparison."""
    assert set(cases()) == {route.name for route in ROUTES if route.broker.max >= 0}


def test_order_does_not_count_but_values_and_presence_do() -> None:
    """Elements are matched by what identifies them."""
    first, second = (
        MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=node, host="h", port=1) for node in nodes],
            topics=[MetadataResponseTopic(name=name, error_code=code) for name, code in topics],
        )
        for nodes, topics in (([1, 2], [("a", 0), ("b", 3)]), ([2, 1], [("b", 5), ("c", 0)]))
    )
    found = compared("Metadata", 0, "l", flat(first, 0, same), flat(second, 0, same))
    assert [(each.path, each.kafka, each.ours) for each in found] == [
        ("topics.'a'.error_code", "NONE", ABSENT),
        ("topics.'a'.name", "'a'", ABSENT),
        ("topics.'a'.partitions", "[]", ABSENT),
        ("topics.'b'.error_code", "UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE"),
        ("topics.'c'.error_code", ABSENT, "NONE"),
        ("topics.'c'.name", ABSENT, "'c'"),
        ("topics.'c'.partitions", ABSENT, "[]"),
    ]


def test_a_row_lists_only_what_it_names() -> None:
    """Nothing is allowed by accident: every row has a pattern of its own."""
    wrong = Difference(
        "Produce", 3, "acks 1", "responses.'t'.error_code", "NONE", "CORRUPT_MESSAGE"
    )
    assert listed(wrong) is None
    row = Allowed("a reason", "Prod*", path="*.error_code", kafka="NONE")
    assert listed(wrong, (row,)) is row
    assert listed(wrong._replace(kafka="CORRUPT_MESSAGE"), (row,)) is None
    assert all(row.reason and len(set(row[1:])) > 1 for row in ALLOWED)


def test_a_request_leaves_out_what_its_version_does_not_carry() -> None:
    """One case serves all versions; a name that no version has is a mistake."""
    part = {"partition_index": 3, "timestamp": -1, "current_leader_epoch": 5}
    fields = {"replica_id": -1, "topics": [{"name": "t", "partitions": [part]}]}
    asked = [
        built(ListOffsetsRequest, version, fields).topics[0].partitions[0].current_leader_epoch
        for version in (3, 4)
    ]
    assert asked == [-1, 5]
    with pytest.raises(KeyError):
        built(ListOffsetsRequest, 3, {"replica": 1})


def test_without_kafka_nothing_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """A port where nobody listens is one line and status 2."""
    assert main(["127.0.0.1:1"]) == 2
    assert "KAFKA=127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.clients
def test_two_of_our_own_brokers_do_not_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What differs by nature is hidden; whatever else came out would be noise of the comparison."""
    only = [
        "Produce",
        "ListOffsets",
        "JoinGroup",
        "DescribeGroups",
        "CreateTopics",
        "DescribeQuorum",
    ]
    now_ms = int(time.time() * 1000)
    brokers = [BrokerProcess(tmp_path / name, SETTINGS) for name in ("a", "b")]
    try:
        first, second = (Side("ours", *broker.start().address, now_ms) for broker in brokers)
        assert compare(first, second, only, False) == 0, capsys.readouterr().out
        assert versions_of("Metadata", first, second) == [0, 6, 13]
    finally:
        for broker in brokers:
            broker.stop()
