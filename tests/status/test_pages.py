"""The pages of a whole broker in memory: what a person finds, and what a page costs."""

from __future__ import annotations

import gc
import re
import sys
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs

from tests.cluster.test_three_controllers import Quorum
from tests.memory_broker import MemoryBroker
from tests.status.looking import Looking
from tests.test_broker import create, produce
from twisted_broker.cluster.features import SUPPORTED_FEATURES
from twisted_broker.interfaces import TopicPartition
from twisted_broker.wire.messages import broker_lifecycle, offsets, topics

HOSTILE = '"><script>alert(1)</script>\u202e&'
BROWSER = "Accept: text/html,application/xhtml+xml\r\n"


class Page(HTMLParser):
    """A page as a browser reads it: elements with their attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text.append(data)
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

    def tags(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]

    def row(self, first: str) -> list[str]:
        (found,) = [row for row in self.rows if row and row[0] == first]
        return found

    @property
    def health(self) -> str:
        return re.search(r"[✓△✗][^✓△✗]*?(?=trouble:|warning:|brokers running)", self.whole)[0]  # type: ignore[index]

    @property
    def whole(self) -> str:
        return "".join(self.text)


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker().start()


def page_of(looking: Looking, path: str) -> Page:
    status, headers, body = looking.get(path)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8"), body
    return Page(body)


def register_dead(broker: MemoryBroker, node: int) -> None:
    """A broker that registers and is never heard again: it stays fenced."""
    request = broker_lifecycle.BrokerRegistrationRequest(
        broker_id=node,
        cluster_id=broker.broker.cluster_id,
        incarnation_id=bytes(15) + bytes([node]),
        listeners=[
            broker_lifecycle.BrokerRegistrationRequestListener(
                name="PLAINTEXT", host="10.0.0.9", port=9092, security_protocol=0
            )
        ],
        features=[
            broker_lifecycle.BrokerRegistrationRequestFeature(
                name=name,
                min_supported_version=found.min_version,
                max_supported_version=found.max_version,
            )
            for name, found in SUPPORTED_FEATURES.items()
        ],
        rack="r<9>",
        log_dirs=[bytes(15) + bytes([200])],
    )
    assert broker.ask(request, 4, port=9093).error_code == 0
    broker.pass_time(1)


def commit(broker: MemoryBroker, group: str, offset: int, partition: int = 0) -> None:
    found = offsets.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=""
    )
    request = offsets.OffsetCommitRequest(
        group_id=group, topics=[offsets.OffsetCommitRequestTopic(name="orders", partitions=[found])]
    )
    find = offsets.FindCoordinatorRequest(key=group, key_type=0)
    while broker.ask(find, 3).error_code:
        broker.pass_time(0.1)
    while (answer := broker.ask(request, 7).topics[0].partitions[0].error_code) in (14, 15, 16):
        broker.pass_time(0.1)
    assert answer == 0


def test_the_overview_of_a_broker_that_is_well(broker: MemoryBroker) -> None:
    """Health first, then figures, the broker, its controller, its directory, groups with their
    lag, topics.
    """
    create(broker, "orders", 2)
    produce(broker, "orders", b"a", b"b", b"c")
    commit(broker, "billing", 1)
    page = page_of(Looking(broker), "/")
    assert "✓ All is well" in page.whole and "trouble" not in page.whole
    assert [each.split("(")[0].strip() for each in page.text if each in SECTIONS] == SECTIONS, (
        "in this order"
    )
    row = page.row("1 (this one)")
    assert row[1:4] == ["127.0.0.1:9092", "–", "running"] and row[6] == "0"
    assert page.row("orders") == ["orders", "2", "1", "in sync"]
    assert page.row("billing") == ["billing", "Empty", "0", "–", "1", "2"]
    assert page.row("/data")[1] == "online"
    assert "/topics/orders" in [each.get("href") for each in page.tags("a")]


SECTIONS = ["Brokers", "Controller", "Log directories", "Groups", "Topics"]


def test_what_is_wrong_comes_first(broker: MemoryBroker) -> None:
    """A broker that is away, and a partition that nobody leads, with links to more."""
    register_dead(broker, 7)
    create(broker, "orders")
    looking = Looking(broker)
    page = page_of(looking, "/")
    assert "✗ 1 trouble" in page.whole
    text = page.whole
    assert text.index("broker 7 is fenced") < text.index("brokers running") < text.index("Brokers")
    assert page.row("7")[1:4] == ["10.0.0.9:9092", "r<9>", "fenced"]
    assert "#broker-7" in [each.get("href") for each in page.tags("a")]
    assert "broker-7" in [each.get("id") for each in page.tags("tr")]


def test_nothing_of_a_name_becomes_markup(broker: MemoryBroker) -> None:
    """Group ids are any text, and so is a filter."""
    create(broker, "orders")
    commit(broker, HOSTILE, 0)
    looking = Looking(broker)
    for path in ("/", "/?topic=%22%3E%3Cscript%3E", "/?group=%3Cscript%3E&topics_from=x"):
        status, headers, body = looking.get(path)
        assert status == 200 and "<script" not in body and "\u202e" not in body
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "script" not in policy and "frame-ancestors 'none'" in policy
        style = re.findall("<style>(.*?)</style>", body, re.S)[0]
        digest = b64encode(sha256(style.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy, "the browser obeys the style as it stands"
        page = Page(body)
        assert not any("style" in attributes for _, attributes in page.elements)
        loaded = [
            value
            for _, attributes in page.elements
            for name, value in attributes.items()
            if name in ("src", "href", "action") and value is not None
        ]
        assert loaded and all(each[0] in "/#?" and each[:2] != "//" for each in loaded)
    assert HOSTILE.replace("\u202e", "\ufffd") in page_of(looking, "/").whole


def test_filters_and_pages(broker: MemoryBroker) -> None:
    """`?topic=` is a part of the name whose case does not matter; a hundred at a time, in order."""
    new = [
        topics.CreatableTopic(name=f"t{number:03}", num_partitions=1, replication_factor=1)
        for number in reversed(range(130))
    ]
    assert broker.ask(topics.CreateTopicsRequest(topics=new, timeout_ms=30_000), 7)
    looking = Looking(broker)

    def shown(path: str) -> list[str]:
        return [row[0] for row in page_of(looking, path).rows if re.fullmatch(r"t\d+", row[0])]

    assert shown("/") == [f"t{number:03}" for number in range(100)]
    page = page_of(looking, "/")
    (following,) = [each["href"] for each in page.tags("a") if each.get("rel") == "next"]
    assert following == "/?topics_from=100#topics"
    assert shown(following.partition("#")[0])[0] == "t100"
    assert shown("/?topics_from=120")[-1] == "t129"
    assert shown("/?topic=T01") == [f"t{number:03}" for number in range(10, 20)]
    assert "10 topics with “T01” in the name" in page_of(looking, "/?topic=T01").whole
    assert shown("/?topics_from=9999999999999") == shown("/"), "no number"
    assert shown("/?topics_from=5000") == []


def test_a_topics_page_and_its_partitions(broker: MemoryBroker) -> None:
    """Leader, replicas, ISR, offsets; a hundred at a time, each with a link to its own page."""
    create(broker, "orders", 250)
    produce(broker, "orders", b"a")
    looking = Looking(broker)
    page = page_of(looking, "/topics/orders")
    row = page.row("orders-0")
    assert row[1:5] == ["1", "1", "1", "leader"] and row[5:7] == ["0 to 1", "1"]
    assert page.rows[-1][0] == "orders-99"
    assert page_of(looking, "/topics/orders?from=200").rows[-1][0] == "orders-249"
    page = Page(looking.get("/explain/orders/0", more=BROWSER)[2])
    assert "Broker 1 leads it at epoch 0" in page.whole and "high watermark" in page.whole


def test_a_partition_is_explained_to_people_and_to_programs(broker: MemoryBroker) -> None:
    """HTML for who accepts it, JSON for all others, and for who wants it by `format`."""
    register_dead(broker, 7)
    create(broker, "orders")
    looking = Looking(broker)
    status, headers, body = looking.get("/explain/orders/0", more=BROWSER)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["vary"] == "accept" and "orders-0 explained" in body
    assert looking.json("/explain/orders/0")["role"] == "leader"
    _, headers, _ = looking.get("/explain/orders/0?format=json", more=BROWSER)
    assert headers["content-type"] == "application/json"


def test_a_disk_that_is_nearly_full_is_a_trouble(broker: MemoryBroker) -> None:
    """Below the limit of the line in the log; the free space stands in the table."""
    space = broker.broker.log_manager.free_space
    space.look()
    looking = Looking(broker)
    page = page_of(looking, "/")
    assert "✓ All is well" in page.whole and page.row("/data")[4].endswith("GiB")
    space.found["/data"] = (1 << 40, 1 << 20)
    text = page_of(looking, "/").whole
    assert "the disk of log directory /data is nearly full: 1.0 MiB of 1.0 TiB are free" in text


def test_a_log_that_is_left_alone_by_the_cleaner_is_a_trouble(broker: MemoryBroker) -> None:
    """With its reason; and it is in a metric."""
    create(broker, "orders")
    cleaner = broker.broker.log_manager.cleaner
    cleaner.uncleanable[TopicPartition("orders", 0)] = "/data/orders-0/0.log is damaged"
    looking = Looking(broker)
    text = page_of(looking, "/").whole
    assert "orders-0 is not compacted: /data/orders-0/0.log is damaged" in text
    metrics = looking.get("/metrics")[2]
    name = "kafka_log_logcleanermanager_uncleanable_partitions_count"
    assert re.search(rf'^{name}{{[^}}]*="/data"[^}}]*}} 1', metrics, re.M)
    broker.pass_time(20)
    metrics = looking.get("/metrics")[2]
    assert "kafka_log_logcleanermanager_max_dirty_percent 0" in metrics
    found = re.search(r"^kafka_log_logcleanermanager_time_since_last_run_ms (\d+)", metrics, re.M)
    assert found is not None and int(found[1]) < 16_000


def test_a_controllers_page_shows_the_cluster() -> None:
    """Brokers with their heartbeats and metadata offsets, its own state; no groups."""
    broker = MemoryBroker(
        process_roles="controller", listeners="CONTROLLER://127.0.0.1:9093"
    ).start()
    register_dead(broker, 7)
    page = page_of(Looking(broker), "/")
    assert "Controller 1" in page.whole and "Groups" not in page.text
    assert page.row("7")[3] == "fenced"
    assert "elections since its start" in page.whole and "metadata offset" in page.whole


def test_a_quorum_is_on_the_pages_of_its_controllers() -> None:
    """QU 5.23: the leader's has each voter and how far it is behind; a standby's names the leader
    and its epoch, not -1; without a majority it says who lacks what. Metrics have Kafka's names.
    """
    quorum = Quorum()
    leader = quorum.leader
    assert leader is not None
    standby, other = (node for node in (1, 2, 3) if node != leader)
    pages = {node: Looking(quorum.nodes[node], 8080 + node) for node in (leader, standby)}
    page = page_of(pages[leader], "/")
    assert [page.row(f"{node}")[0] for node in (1, 2, 3)] == ["1", "2", "3"]
    assert page.row(f"{leader}")[2] == "leads" and page.row(f"{standby}")[2] == "0"
    metrics = pages[leader].get("/metrics")[2]
    for line in ("number_of_voters 3", "number_of_observers 1", "uncommitted_voter_change 0"):
        assert f"kafka_server_raft_metrics_{line}\n" in metrics
    assert "kafka_server_raft_metrics_election_latency_max" in metrics
    text = " ".join(page_of(pages[standby], "/").text)
    assert f"active controller {leader}" in text and "this one is follower" in text
    assert (
        "epoch -1" not in text
        and "kafka_server_raft_metrics_number_of_observers"
        not in (pages[standby].get("/metrics")[2])
    )
    quorum.crash(leader)
    quorum.crash(other)
    pages[standby].broker.pass_time(6)
    text = " ".join(page_of(pages[standby], "/").text)
    assert "no controller is active" in text
    assert f"node {standby} would vote for it, nobody refused, nodes" in text
    assert "did not answer; a majority is 2 of nodes 1, 2, 3" in text
    quorum.stop()


def test_a_node_that_starts_has_a_page() -> None:
    """Before there is any metadata."""
    broker = MemoryBroker()
    page = page_of(Looking(broker), "/")
    assert "Node 1, starting" in page.whole and "none is registered yet" in page.whole


def test_every_table_says_what_it_is(broker: MemoryBroker) -> None:
    """For who cannot see it: a caption, headers with a scope, labels, a language."""
    create(broker, "orders")
    commit(broker, "billing", 0)
    page = page_of(Looking(broker), "/")
    assert page.tags("html")[0]["lang"] == "en" and len(page.tags("main")) == 1
    assert len(page.tags("table")) == len(page.tags("caption")) == 4
    assert {each.get("scope") for each in page.tags("th")} == {"col", "row"}
    labelled = {each["for"] for each in page.tags("label")}
    assert labelled == {each["id"] for each in page.tags("input") if each.get("type") != "hidden"}


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2 counts it."""

    def light(colour: str) -> float:
        full = "".join(each * 2 for each in colour) if len(colour) == 3 else colour
        parts = [int(full[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        red, green, blue = (
            each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_are_readable_in_light_and_dark() -> None:
    """WCAG AA: 4.5 for text, on the page and on what is set off from it."""
    from twisted_broker.status.html import STYLE

    schemes = re.findall(r":root\{([^}]*)\}", STYLE)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+):#([0-9a-f]+)", scheme))
        for back in ("back", "card"):
            for text in ("text", "soft", "link", "good", "bad", "warn"):
                assert contrast(colours[back], colours[text]) >= 4.5, (back, text)


def run_turns(broker: MemoryBroker, answered: Deferred[Any]) -> list[int]:
    """Calls of Python functions in each turn of the clock until the answer is there."""
    turns: list[int] = []

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            turns[-1] += 1

    while not answered.called:
        turns.append(0)
        one_turn(broker, count)
    return turns


def one_turn(broker: MemoryBroker, profile: Any = None) -> None:
    """The first call that waits, and not what that one schedules."""
    calls = broker.clock.getDelayedCalls()
    first: Any = min(calls, key=lambda each: each.getTime())
    broker.clock.rightNow = max(broker.clock.rightNow, first.getTime())
    broker.clock.calls.remove(first)
    first.called = 1
    sys.setprofile(profile)
    try:
        first.func(*first.args, **first.kw)
    finally:
        sys.setprofile(None)


# A call takes a tenth of a microsecond to one: a turn of so many is below 10 ms.
MOST_CALLS = 6_000


def test_no_turn_of_a_page_is_long() -> None:
    """Topics, partitions and troubles by the thousand: written in many turns."""
    broker = MemoryBroker().start()
    register_dead(broker, 7)
    assignments = [
        topics.CreatableReplicaAssignment(partition_index=number, broker_ids=[1])
        for number in range(300)
    ]
    for number in range(3):
        new = topics.CreatableTopic(
            name=f"t{number}", num_partitions=-1, replication_factor=-1, assignments=assignments
        )
        request = topics.CreateTopicsRequest(topics=[new], timeout_ms=30_000)
        assert not broker.ask(request, 7).topics[0].error_code
    broker.pass_time(2)
    looking = Looking(broker)
    looking.get("/")  # loads what is loaded once
    for path in ("/", "/?topic=1", "/topics/t1?from=100"):
        turns = run_turns(broker, looking.ask(path, more="Connection: close\r\n"))
        assert len(turns) > 10 and max(turns) < MOST_CALLS, (path, sorted(turns)[-5:])


def test_a_client_that_goes_ends_its_page(broker: MemoryBroker) -> None:
    """The rest is not written, and nothing is left of it."""
    create(broker, "orders", 300)
    looking = Looking(broker)
    looking.get("/")
    answered: Any = looking.ask("/topics/orders")
    turns: Any = broker.broker.parts.turns
    while not turns._requests:
        one_turn(broker)
    gc.collect()  # what earlier tests left
    with capturedLogs() as said:
        looking.port._factory.close_all()
        broker.pass_time(1)
        gc.collect()  # what nobody waited for would be logged
    assert answered.called and answered.result == b"" and not turns._requests
    assert not [each for each in said if each["log_level"] >= LogLevel.error]
    assert looking.get("/topics/orders")[0] == 200


def test_a_broker_without_its_controller_says_so() -> None:
    """Records are served; what the page shows of the cluster is old."""
    first = MemoryBroker(
        process_roles="controller", listeners="CONTROLLER://127.0.0.1:9093", node_id="100"
    ).start()
    second = MemoryBroker(
        world=first,
        process_roles="broker",
        node_id="2",
        listeners="PLAINTEXT://127.0.0.1:9092",
        controller_quorum_bootstrap_servers="127.0.0.1:9093",
        log_dirs="/data2",
    ).start()
    looking = Looking(second)
    assert "✓ All is well" in page_of(looking, "/").whole
    first.stop()
    second.pass_time(20)
    text = page_of(looking, "/").whole
    assert "the controller at 127.0.0.1:9093 is not reached" in text
    assert looking.get("/readyz")[0] == 200, "records are served without it"
