"""The page that follows a broker: what changed, and no more; in a whole broker in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.memory_broker import MemoryBroker
from tests.status.looking import Looking
from tests.status.test_pages import HOSTILE, commit
from tests.test_broker import create, produce
from twisted_broker.status.live_state import LiveState, has_news
from twisted_broker.wire.messages import topics
from twisted_broker.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker().start()


class Following:
    """Somebody who asks again with what he was given."""

    def __init__(self, looking: Looking) -> None:
        self.looking, self.at = looking, ("0", "")

    def ask(self) -> Any:
        version, of = self.at
        found = self.looking.json(f"/live/state?since={version}&of={of}")
        self.at = str(found["version"]), found["of"]
        return found


def names(found: Any) -> list[str]:
    return [f"{each['topic']}-{each['partition']}" for each in found["partitions"]]


def test_what_changed_is_told_and_no_more(broker: MemoryBroker) -> None:
    create(broker, "orders", 2)
    create(broker, "other")
    page = Following(Looking(broker))
    first = page.ask()
    assert first["whole"] and sorted(names(first)) == ["orders-0", "orders-1", "other-0"]
    assert [each["state"] for each in first["brokers"]] == ["running"]
    assert not has_news(page.ask())
    produce(broker, "orders", b"a", b"b")
    change = page.ask()
    assert not change["whole"] and names(change) == ["orders-0"] and "groups" not in change
    (copy,) = change["partitions"][0]["replicas"]
    assert (copy["start"], copy["high_watermark"], copy["end"]) == (0, 2, 2)
    assert copy["leads"] and copy["epochs"] == [[0, 0]]
    commit(broker, HOSTILE, 1)
    (group,) = page.ask()["groups"]
    assert (group["name"], group["state"], group["lag"]) == (HOSTILE, "Empty", 1)
    delete = topics.DeleteTopicsRequest(topic_names=["other"], timeout_ms=1000)
    broker.ask(delete, 4)
    broker.pass_time(2)
    assert page.ask()["gone"] == [["other", 0]]
    assert not has_news(page.ask())


def test_who_was_at_another_process_gets_all(broker: MemoryBroker) -> None:
    create(broker, "orders")
    page = Following(Looking(broker))
    page.ask()
    version, of = page.at
    for place in ((version, "another"), ("99", of), ("x", of)):
        page.at = place
        assert page.ask()["whole"]


def test_so_many_rows_and_no_more(broker: MemoryBroker) -> None:
    create(broker, "orders", 5)
    state = LiveState("one", most_partitions=3)
    for _ in state.look([broker.broker.parts], {}, 0):
        pass
    found = state.since(0, "", 0)
    assert sorted(names(found)) == ["orders-0", "orders-1", "orders-2"]
    assert found["left_out"] == 2


def test_only_this_page_has_a_script_and_it_only_asks(broker: MemoryBroker) -> None:
    looking = Looking(broker)
    status, headers, page = looking.get("/live/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy and "form-action" in policy
    assert '<script src="page.js">' in page and page.count("<script") == 1
    status, headers, _ = looking.get("/live/page.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert "script" not in looking.get("/")[1]["content-security-policy"]
    assert looking.get("/live/nothing")[0] == 404
    assert looking.get("/live/state", method="POST")[0] == 405


def test_a_read_that_waits_says_for_what(broker: MemoryBroker) -> None:
    create(broker, "orders")
    page = Following(Looking(broker))
    page.ask()
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    asked = FetchTopic(topic="orders", partitions=[wanted])
    broker.connection().send(
        FetchRequest(max_wait_ms=20_000, min_bytes=1, max_bytes=1 << 20, topics=[asked]), 11
    )
    broker.pass_time(0.5)
    (waits,) = page.ask()["waiting"]
    assert (waits["api"], waits["at"], waits["until_ms"]) == ("Fetch", "orders-0", None)
    assert waits["why"] == (
        "a consumer reads from 0 up to the high watermark: 0 of 1 bytes are there, "
        "over all its partitions"
    )
    broker.pass_time(0.5)
    assert not has_news(page.ask())


def test_a_controllers_page_has_the_partitions_of_the_metadata() -> None:
    first = MemoryBroker(
        process_roles="controller", listeners="CONTROLLER://127.0.0.1:9093", node_id="100"
    ).start()
    serving = MemoryBroker(
        world=first,
        process_roles="broker",
        node_id="1",
        listeners="PLAINTEXT://127.0.0.1:9092",
        controller_quorum_bootstrap_servers="127.0.0.1:9093",
        log_dirs="/data1",
    ).start()
    create(serving, "orders")
    found = Following(Looking(first, 8081)).ask()
    assert [each["node"] for each in found["brokers"]] == [1]
    (row,) = found["partitions"]
    assert (row["topic"], row["leader"], row["isr"], row["replicas"]) == ("orders", 1, [1], [])
