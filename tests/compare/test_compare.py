"""The comparison itself: it sees what differs, and nothing between two of our own brokers."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.compare.allowed import ALLOWED, Allowed
from tests.compare.differences import ABSENT, SENTENCE, Difference, compared, flat, text
from tests.compare.hostile import collected, damaged, hostile
from tests.compare.run import (
    ON_CONTROLLER,
    SETTINGS,
    Outcome,
    cases,
    compare,
    concluded,
    differences,
    listed,
    main,
    versions_of,
)
from tests.compare.side import ROUTE_OF, Side, built
from tests.compat.broker_process import BrokerProcess
from twisted_broker.api.routes import ROUTES
from twisted_broker.wire.header import APPEND_MIRRORED
from twisted_broker.wire.messages.list_offsets import ListOffsetsRequest
from twisted_broker.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from twisted_broker.wire.messages.sasl import CredentialInfo, DescribeUserScramCredentialsResult
from twisted_broker.wire.schema import version_range


def same(value: object) -> object:
    return value


@pytest.mark.parametrize("on_controller", [False, True])
def test_every_api_that_is_served_has_its_cases(on_controller: bool) -> None:
    """A new row of the API table comes with its comparison, but for APIs that Kafka has not."""
    served = {
        route.name
        for route in ROUTES
        if route.versions(on_controller).max >= 0 and route.api_key != APPEND_MIRRORED
    }
    assert set(cases(on_controller)) == served


@pytest.mark.parametrize(("api", "on_controller"), [("", False), ("@controller", True)])
def test_no_row_calls_an_api_that_is_served_not_served(api: str, on_controller: bool) -> None:
    """Such a row is of no use, and a whole run beside Kafka fails for it."""
    served = {
        f"api_keys.{route.api_key}" for route in ROUTES if route.versions(on_controller).max >= 0
    }
    lacking = {
        row.path
        for row in ALLOWED
        if row.api == f"ApiVersions{api}" and row.reason == "not served yet" and row.ours == ABSENT
    }
    assert bool(lacking) == on_controller and not lacking & served


def test_the_mechanisms_of_a_user_have_no_order() -> None:
    """Kafka keeps them in a hash map by their identity: the order is another in every process."""
    weak, strong = (
        CredentialInfo(mechanism=mechanism, iterations=iterations)
        for mechanism, iterations in ((1, 4096), (2, 8192))
    )
    first, second, other = (
        flat(DescribeUserScramCredentialsResult(user="a", credential_infos=infos), 0, same)
        for infos in ([weak, strong], [strong, weak], [weak])
    )
    assert compared("Describe", 0, "l", first, second) == []
    (found,) = compared("Describe", 0, "l", first, other)
    assert found.path == "credential_infos.2" and found.ours == ABSENT


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
        ("topics.'a'", "{error_code: NONE, name: 'a', partitions: []}", ABSENT),
        ("topics.'b'.error_code", "UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE"),
        ("topics.'c'", ABSENT, "{error_code: NONE, name: 'c', partitions: []}"),
    ]


def test_elements_and_answers_of_one_side_are_one_difference() -> None:
    """What a missing element has is said in one line, and so is a missing answer."""
    here = MetadataResponse(topics=[MetadataResponseTopic(name="a", error_code=3)])
    none = flat(MetadataResponse(topics=[]), 0, same)
    found = compared("Metadata", 0, "l", none, flat(here, 0, same))
    element = "{error_code: UNKNOWN_TOPIC_OR_PARTITION, name: 'a', partitions: []}"
    assert [(each.path, each.kafka, each.ours) for each in found] == [
        ("topics.'a'", ABSENT, element)
    ]
    (silent,) = compared("Metadata", 0, "l", flat("(no answer)", 0, same), flat(here, 0, same))
    assert silent.ours == "(an answer: UNKNOWN_TOPIC_OR_PARTITION)"


def test_whether_there_is_a_sentence_counts_not_its_words() -> None:
    """None, an empty one and one are three answers; two sentences are the same."""
    texts = [text("error_message", value) for value in (None, "", "ours", "theirs")]
    assert texts == ["None", "''", SENTENCE, SENTENCE]


def test_a_row_lists_only_what_it_names() -> None:
    """Nothing is allowed by accident: API, versions, field and both values must fit."""
    wrong = Difference(
        "Produce", 3, "acks 1", "responses.'t'.error_code", "NONE", "CORRUPT_MESSAGE"
    )
    assert listed(wrong) is None
    row = Allowed("why", "Produce", "2-3", "acks *", "*.error_code", "NONE", "CORRUPT_MESSAGE")
    assert listed(wrong, (row,)) is row
    for other in (
        {"api": "Fetch"},
        {"version": 4},
        {"label": "codec 7"},
        {"path": "responses.'t'.base_offset"},
        {"kafka": "CORRUPT_MESSAGE"},
        {"ours": "NONE"},
    ):
        assert listed(wrong._replace(**other), (row,)) is None


@pytest.mark.parametrize("row", ALLOWED, ids=lambda row: f"{row.api}-{row.path}")
def test_no_row_allows_a_whole_api_or_any_value(row: Allowed) -> None:
    """Each names an API, versions that it has, a field and two values, with a reason."""
    name = row.api.removesuffix(ON_CONTROLLER)
    assert row.reason and row.label
    served = ROUTE_OF[name].versions(on_controller=name != row.api)
    named = version_range(row.versions)
    assert served.min <= named.min <= served.max
    assert row.path.strip("*.") or (row.path == "" and row.label != "*")
    assert row.kafka.strip("*") or row.kafka == "", "any value of Kafka's"
    assert row.ours.strip("*") or row.ours == "", "any value of ours"


def test_a_row_that_nothing_used_fails_a_whole_run(capsys: pytest.CaptureFixture[str]) -> None:
    """What no longer differs leaves the table; a run of a few APIs says nothing of that."""
    outcome = Outcome()
    assert outcome.stale() == list(ALLOWED)
    assert concluded(outcome, whole=True) == 1
    assert f"{len(ALLOWED)} rows that nothing used" in capsys.readouterr().out
    assert concluded(outcome, whole=False) == 0
    outcome.add(Difference("Produce", 3, "acks 1", "throttle_time_ms", "0", "1"))
    assert concluded(outcome, whole=False) == 1


def test_a_damaged_request_has_the_bits_of_its_list_flipped() -> None:
    """The same bits on both sides, whatever else is in the two frames."""
    assert damaged(bytes(4), [0, 15, 16, 16]) == b"\x01\x80\0\0"


def test_a_case_that_stops_on_both_sides_is_a_difference() -> None:
    """It compared nothing, however alike the two stops are."""

    def stops(side: Side, version: int) -> None:
        raise AssertionError("not served")

    one: Any = SimpleNamespace(begin=lambda *_: None, answers=[], normal=same)
    (found,) = differences("Fetch", stops, 4, one, one)
    assert found.kafka == found.ours == "AssertionError: not served"


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
        "EndTxn",
    ]
    now_ms = int(time.time() * 1000)
    brokers = [BrokerProcess(tmp_path / name, SETTINGS) for name in ("a", "b")]
    try:
        first, second = (Side("ours", *broker.start().address, now_ms) for broker in brokers)
        outcome = compare(first, second, only, False)
        assert not outcome.others and not outcome.listed, capsys.readouterr().out
        few = {name: cases()[name] for name in ("Metadata", "InitProducerId", "OffsetFetch")}
        pairs = collected(first, second, few)
        assert len(pairs) > 20
        assert hostile(first, second, pairs, 60, seed=3) == 0
        assert "60 with the same result" in capsys.readouterr().out
        assert versions_of("Metadata", first, second) == [0, 6, 13]
    finally:
        for broker in brokers:
            broker.stop()
