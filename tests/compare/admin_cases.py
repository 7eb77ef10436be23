"""Cases: the cluster, topics and settings."""

from __future__ import annotations

from typing import Any

from tests.compare.side import STANDS_FOR_LATIN_1, Side

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
NO_ID = bytes(16)
UNKNOWN_ID = bytes(15) + b"\x63"
LAGS = {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"}
BAD_NAMES = ("", ".", "..", "a b", "a/b", "é", "n" * 250)


def api_versions(side: Side, version: int) -> None:
    def tidy(answer: Any) -> None:
        answer.finalized_features_epoch = min(answer.finalized_features_epoch, 1)

    def asked(label: str, name: str = "a-client", number: str = "1.0") -> None:
        side.ask(label, tidy, client_software_name=name, client_software_version=number)

    asked("what is served")
    if version >= 3:
        for name in ("", "a b", "-a", "a" * 300):
            asked(f"software {name[:5]!r} {len(name)}", name)
        asked("software version", number="!")


def metadata(side: Side, version: int) -> None:
    topic = side.topic(partitions=3)
    other = side.topic("other")
    newest = version >= 12

    def asked(label: str, *names: str, ids: tuple[bytes, ...] = (), **more: Any) -> None:
        topics: list[dict[str, Any]] = [{"name": name, "topic_id": NO_ID} for name in names]
        topics += [{"name": None if newest else "", "topic_id": topic_id} for topic_id in ids]
        fields = {"topics": topics, "allow_auto_topic_creation": False}
        side.ask(label, **(fields | more))

    asked("a topic", topic)
    asked("two topics", topic, other)
    asked("named twice", topic, topic)
    if version >= 1:
        asked("no topics", topics=[])
    if version >= 4:
        asked("no such topic", f"{topic}-no")
        for name in BAD_NAMES:
            asked(f"name {name[:9]!r}", name)
        asked("name not UTF-8", STANDS_FOR_LATIN_1.decode())
    if version >= 8:
        asked("operations of a topic", topic, include_topic_authorized_operations=True)
    if 8 <= version <= 10:
        asked("operations of the cluster", topic, include_cluster_authorized_operations=True)
    if newest:
        asked("by id", ids=(side.id_of(topic),))
        asked("no such id", ids=(UNKNOWN_ID,))
        asked("neither name nor id", ids=(NO_ID,))
        both = [{"name": topic, "topic_id": side.id_of(other)}]
        asked("name of one, id of another", topics=both)
    asked("created when named", f"{topic}-new", allow_auto_topic_creation=True)
    made = side.settled(
        "Metadata",
        lambda answer: not answer.topics[0].error_code,
        topics=[{"name": f"{topic}-new"}],
        allow_auto_topic_creation=False,
    )
    side.hide(bytes(made.topics[0].topic_id), f"(id of {topic}-new)")
    side.wait_served(f"{topic}-new", 1)
    asked("once it is created", f"{topic}-new")


def describe_cluster(side: Side, version: int) -> None:
    side.ask("ordinary")
    side.ask("operations", include_cluster_authorized_operations=True)
    if version >= 1:
        for kind in (0, 2, 3, -1):
            side.ask(f"endpoint type {kind}", endpoint_type=kind)
    if version >= 2:
        side.ask("fenced ones", include_fenced_brokers=True)


def describe_quorum(side: Side, version: int) -> None:
    def tidy(answer: Any) -> None:
        for topic in answer.topics:
            for part in topic.partitions:
                part.high_watermark = min(part.high_watermark, 1)
                part.leader_epoch = min(part.leader_epoch, 1)
                for voter in part.current_voters:
                    voter.log_end_offset = min(voter.log_end_offset, 1)
                    voter.last_fetch_timestamp = min(voter.last_fetch_timestamp, 1)
                    voter.last_caught_up_timestamp = min(voter.last_caught_up_timestamp, 1)
        for node in answer.nodes:
            for listener in node.listeners:
                listener.port = 1

    def asked(label: str, name: str, *partitions: int) -> None:
        parts = [{"partition_index": each} for each in partitions]
        side.ask(label, tidy, topics=[{"topic_name": name, "partitions": parts}])

    asked("the metadata", "__cluster_metadata", 0)
    asked("no such partition", "__cluster_metadata", 1)
    asked("two partitions", "__cluster_metadata", 0, 1)
    asked("another topic", "t", 0)
    side.ask("no topics", topics=[])


def describe_topic_partitions(side: Side, version: int) -> None:
    topic, other = side.topic(partitions=3), side.topic("u", partitions=2)

    def asked(label: str, *names: str, limit: int = 2000, cursor: Any = None) -> None:
        at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        fields = {"topics": [{"name": name} for name in names], "response_partition_limit": limit}
        side.ask(label, **fields, **({} if at is None else {"cursor": at}))

    asked("a topic", topic)
    asked("two topics", topic, other)
    asked("named twice", topic, topic)
    asked("no such topic", "nobody")
    for name in BAD_NAMES:
        asked(f"name {name[:9]!r}", name)
    for limit in (-1, 0, 1, 2, 3, 4):
        asked(f"limit {limit}", topic, other, limit=limit)
    for where in (
        (topic, 1),
        (topic, 3),
        (topic, 9),
        (other, 0),
        (topic, -1),
        ("nobody", 0),
        ("", 0),
    ):
        asked(f"cursor {where}", topic, other, cursor=where)
    asked("cursor at another topic", topic, cursor=(other, 0))
    asked("cursor at no topic", topic, "nobody", cursor=("nobody", 0))
    asked("cursor in the middle of nobody", topic, "nobody", cursor=("nobody", 1))


def create_topics(side: Side, version: int) -> None:
    def asked(label: str, *topics: dict[str, Any], **more: Any) -> None:
        wanted = [{"num_partitions": 1, "replication_factor": 1} | topic for topic in topics]
        answer = side.call("CreateTopics", version, {"topics": wanted, "timeout_ms": 10_000} | more)
        for topic in getattr(answer, "topics", ()):
            if any(topic.topic_id):
                side.hide(bytes(topic.topic_id), f"(id of {topic.name})")
        side.note(label, answer)

    name = side.name
    asked("one", {"name": name("a")})
    asked("again", {"name": name("a")})
    asked("two", {"name": name("b"), "num_partitions": 3}, {"name": name("c")})
    asked("named twice", {"name": name("d")}, {"name": name("d")})
    for bad in BAD_NAMES:
        asked(f"name {bad[:9]!r}", {"name": bad})
    asked("collides", {"name": f"{side.prefix}.a"}, {"name": f"{side.prefix}_b"})
    asked("collides with another", {"name": f"{side.prefix}_a"})
    asked("internal", {"name": "__cluster_metadata"})
    for count in (-2, 0):
        asked(f"{count} partitions", {"name": name("e"), "num_partitions": count})
    for factor in (-2, 0, 2, 32767):
        asked(f"replication factor {factor}", {"name": name("f"), "replication_factor": factor})
    if version >= 4:
        default = {"num_partitions": -1, "replication_factor": -1}
        asked("defaults", {"name": name("g")} | default)
    by_hand = {"num_partitions": -1, "replication_factor": -1}

    def assigned(label: str, *brokers: list[int], first: int = 0, **more: Any) -> None:
        rows = [
            {"partition_index": first + number, "broker_ids": ids}
            for number, ids in enumerate(brokers)
        ]
        asked(label, {"name": name("h"), "assignments": rows} | by_hand | more)

    assigned("assigned to nobody", [])
    assigned("assigned to a stranger", [9])
    assigned("assigned twice to one", [1, 1])
    assigned("assigned to a negative id", [-1])
    assigned("assigned from 1 on", [1], first=1)
    assigned("assigned unevenly", [1], [1, 2])
    assigned("assigned with a count", [1], num_partitions=1)
    assigned("assigned with a factor", [1], replication_factor=1)
    assigned("assigned", [1], [1])
    settings = (
        ("no.such", "1"),
        ("retention.ms", "x"),
        ("retention.ms", "-2"),
        ("retention.ms", None),
        ("retention.ms", " 5 "),
        ("retention.ms", ""),
        ("cleanup.policy", "what"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact, delete"),
        ("cleanup.policy", "compact,compact"),
        ("preallocate", "TRUE"),
        ("preallocate", "yes"),
        ("min.cleanable.dirty.ratio", "0.50"),
        ("compression.type", "GZIP"),
        ("compression.type", " gzip "),
        ("segment.bytes", "1048575"),
        ("segment.bytes", "2147483648"),
        ("remote.storage.enable", "true"),
        ("local.retention.ms", "5"),
        ("leader.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1"),
        ("follower.replication.throttled.replicas", "what"),
        ("follower.replication.throttled.replicas", ""),
        ("follower.replication.throttled.replicas", "*,0:1"),
        ("follower.replication.throttled.replicas", "0:1,"),
        ("follower.replication.throttled.replicas", " 0:1 , 1:1"),
        ("follower.replication.throttled.replicas", "0:-1"),
    )
    for number, (key, value) in enumerate(settings):
        entry = {"name": key, "value": value}
        asked(f"setting {key}={value!r}", {"name": name(f"s{number}"), "configs": [entry]})
    lags = {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}
    entries = [{"name": key, "value": value} for key, value in lags.items()]
    asked("compaction lags", {"name": name("lags"), "configs": entries})
    twice = [{"name": "retention.ms", "value": value} for value in "12"]
    asked("a setting twice", {"name": name("twice"), "configs": twice})
    if version >= 1:
        asked("only checked", {"name": name("v")}, validate_only=True)
        asked("only checked, exists", {"name": name("a")}, validate_only=True)
    asked("none")
    asked("timeout 0", {"name": name("late")}, timeout_ms=0)


def delete_topics(side: Side, version: int) -> None:
    by_state = version >= 6

    def asked(label: str, *names: str, states: Any = None, timeout_ms: int = 10_000) -> None:
        topics = [{"name": name} for name in names] if states is None else states
        side.ask(label, topics=topics, topic_names=list(names), timeout_ms=timeout_ms)

    first, second = side.topic("a"), side.topic("b")
    asked("no such topic", "nobody")
    for bad in BAD_NAMES:
        asked(f"name {bad[:9]!r}", bad)
    asked("named twice", first, first)
    asked("one", first)
    asked("again", first)
    asked("two", second, "nobody")
    asked("none")
    asked("timeout 0", side.topic("late"), timeout_ms=0)
    if by_state:
        third = side.topic("c")
        topic_id = side.id_of(third)
        asked("neither", states=[{"name": None, "topic_id": NO_ID}])
        asked("no such id", states=[{"name": None, "topic_id": UNKNOWN_ID}])
        asked("both", states=[{"name": third, "topic_id": topic_id}])
        either = [{"name": third, "topic_id": NO_ID}, {"name": None, "topic_id": topic_id}]
        asked("by name and by id", states=either)
        asked("by id", states=[{"name": None, "topic_id": topic_id}])


def create_partitions(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)

    def asked(label: str, count: int, name: str = topic, rows: Any = None, **more: Any) -> None:
        given = None if rows is None else [{"broker_ids": ids} for ids in rows]
        wanted = {"name": name, "count": count, "assignments": given}
        fields = {"topics": [wanted] * more.pop("times", 1), "timeout_ms": 10_000}
        side.ask(label, **(fields | more))

    for count in (2, 1, 0, -1):
        asked(f"to {count}", count)
    asked("no such topic", 5, "nobody")
    asked("bad name", 5, "a b")
    asked("named twice", 3, times=2)
    asked("only checked", 4, validate_only=True)
    asked("to 3", 3)
    asked("assigned", 4, rows=[[1]])
    asked("assigned to a stranger", 5, rows=[[7]])
    asked("assigned to nobody", 5, rows=[[]])
    asked("assigned twice to one", 5, rows=[[1, 1]])
    asked("too few assigned", 7, rows=[[1]])
    asked("too many assigned", 5, rows=[[1], [1]])
    asked("none", 5, times=0)
    asked("timeout 0", 5, timeout_ms=0)


def describe_configs(side: Side, version: int) -> None:
    topic = side.topic(retention_ms=" 5 ", preallocate="TRUE")

    def asked(label: str, kind: int, name: str, keys: Any = None, **more: Any) -> None:
        one = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        side.ask(label, **({"resources": [one] * more.pop("times", 1)} | more))

    for synonyms in (False, True):
        asked(f"a topic, synonyms {synonyms}", TOPIC, topic, include_synonyms=synonyms)
        asked(f"the broker, synonyms {synonyms}", BROKER, "1", include_synonyms=synonyms)
        asked(f"all brokers, synonyms {synonyms}", BROKER, "", include_synonyms=synonyms)
        asked(f"a group, synonyms {synonyms}", GROUP, "g", include_synonyms=synonyms)
        asked(f"metrics, synonyms {synonyms}", CLIENT_METRICS, "m", include_synonyms=synonyms)
    asked("one key", TOPIC, topic, ["retention.ms"])
    asked("no such key", TOPIC, topic, ["what"])
    asked("no keys", TOPIC, topic, [])
    asked("named twice", TOPIC, topic, ["retention.ms"], times=2)
    asked("no such topic", TOPIC, "nobody")
    for bad in BAD_NAMES[:4]:
        asked(f"topic {bad!r}", TOPIC, bad)
    for bad in ("2", "x", "-1"):
        asked(f"broker {bad!r}", BROKER, bad)
        asked(f"loggers of {bad!r}", LOGGER, bad)
    asked("loggers of all", LOGGER, "")
    asked("loggers", LOGGER, "1", ["org.apache.kafka"])
    asked("no group", GROUP, "")
    asked("no metrics", CLIENT_METRICS, "")
    side.ask("none", resources=[])


def alterations() -> list[tuple[str, int, str, list[tuple[str, str | None]]]]:
    """(label, kind, name, settings) of what both calls are asked; `{t}` is the topic, `{u}`
    another one, for what only one side accepts.
    """
    return [
        ("a topic", TOPIC, "{t}", [("retention.ms", "7")]),
        ("text as given", TOPIC, "{t}", [("retention.ms", " 8 "), ("preallocate", "True")]),
        ("no such setting", TOPIC, "{t}", [("what", "1")]),
        ("out of range", TOPIC, "{t}", [("retention.ms", "-9")]),
        ("no number", TOPIC, "{t}", [("retention.ms", "x")]),
        ("empty", TOPIC, "{t}", [("retention.ms", "")]),
        ("no value", TOPIC, "{t}", [("retention.ms", None)]),
        ("named twice", TOPIC, "{t}", [("retention.ms", "1"), ("retention.ms", "2")]),
        ("compaction lags", TOPIC, "{t}", [("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "8")]),
        ("tiered on", TOPIC, "{t}", [("remote.storage.enable", "true")]),
        ("tiered off", TOPIC, "{t}", [("remote.storage.enable", "false")]),
        ("local retention", TOPIC, "{t}", [("local.retention.ms", "3"), ("local.retention.bytes", "4")]),
        ("local retention -3", TOPIC, "{t}", [("local.retention.ms", "-3")]),
        ("throttled", TOPIC, "{u}", [("leader.replication.throttled.replicas", "0:1,1:1")]),
        ("throttled, wrong", TOPIC, "{u}", [("leader.replication.throttled.replicas", "x")]),
        ("no such topic", TOPIC, "nobody", [("retention.ms", "7")]),
        ("bad topic", TOPIC, "a b", [("retention.ms", "7")]),
        ("all topics", TOPIC, "", [("retention.ms", "7")]),
        ("nothing", TOPIC, "{t}", []),
        ("a broker", BROKER, "1", [("message.max.bytes", "1048588")]),
        ("all brokers", BROKER, "", [("message.max.bytes", "1048588")]),
        ("another broker", BROKER, "2", [("message.max.bytes", "1048588")]),
        ("no broker id", BROKER, "x", [("message.max.bytes", "1048588")]),
        ("broker, needs a restart", BROKER, "1", [("log.dirs", "/x")]),
        ("broker, no such setting", BROKER, "1", [("what.ever", "1")]),
        ("broker, throttled", BROKER, "1", [("leader.replication.throttled.rate", "1000"), ("follower.replication.throttled.rate", "0")]),
        ("all brokers, throttled", BROKER, "", [("leader.replication.throttled.rate", "1000")]),
        ("broker, throttle -1", BROKER, "1", [("follower.replication.throttled.rate", "-1")]),
        ("broker, out of range", BROKER, "1", [("message.max.bytes", "-1")]),
        ("broker, no number", BROKER, "", [("message.max.bytes", "x")]),
        ("broker, io threads", BROKER, "1", [("num.io.threads", "8")]),
        ("broker, io threads -1", BROKER, "1", [("num.io.threads", "-1")]),
        ("broker, cleaner threads abc", BROKER, "1", [("log.cleaner.threads", "abc")]),
        ("broker, cleaner threads", BROKER, "", [("log.cleaner.threads", "1")]),
        ("broker, background threads 0", BROKER, "", [("background.threads", "0")]),
        ("broker, metric reporters", BROKER, "", [("metric.reporters", "")]),
        ("broker, policy class", BROKER, "", [("alter.config.policy.class.name", "x.Y")]),
        ("broker, for one only", BROKER, "", [("listeners", "PLAINTEXT://:1")]),
        ("broker, connections of an address", BROKER, "", [("max.connections.per.ip.overrides", "h:x")]),
        ("metrics", CLIENT_METRICS, "m", [("interval.ms", "5000"), ("metrics", "a.b,c")]),
        ("metrics, interval 1", CLIENT_METRICS, "m", [("interval.ms", "1")]),
        ("metrics, match", CLIENT_METRICS, "m", [("match", "client_id=a.*,client_instance_id=b")]),
        ("metrics, bad match", CLIENT_METRICS, "m", [("match", "what=a")]),
        ("metrics, bad pattern", CLIENT_METRICS, "m", [("match", "client_id=[")]),
        ("metrics, no such setting", CLIENT_METRICS, "m", [("what", "1")]),
        ("metrics of nobody", CLIENT_METRICS, "", [("interval.ms", "5000")]),
        ("a group", GROUP, "g", [("consumer.session.timeout.ms", "50000")]),
        ("group, too short", GROUP, "g", [("consumer.session.timeout.ms", "10")]),
        ("group, too long", GROUP, "g", [("consumer.heartbeat.interval.ms", "99999")]),
        ("group, above the session", GROUP, "g", [("consumer.session.timeout.ms", "45000"), ("consumer.heartbeat.interval.ms", "45000")]),
        ("group, share", GROUP, "g", [("share.isolation.level", "read_committed"), ("share.auto.offset.reset", "by_duration:PT1H")]),
        ("group, share reset", GROUP, "g", [("share.auto.offset.reset", "what")]),
        ("group, streams", GROUP, "g", [("streams.num.standby.replicas", "1")]),
        ("group, too many standbys", GROUP, "g", [("streams.num.standby.replicas", "9")]),
        ("group, no such setting", GROUP, "g", [("what", "1")]),
        ("no group", GROUP, "", [("consumer.session.timeout.ms", "50000")]),
        ("type 0", 0, "x", [("a", "1")]),
        ("type 99", 99, "x", [("a", "1")]),
        ("type -1", -1, "x", [("a", "1")]),
    ]  # fmt: skip


def altered(
    side: Side,
    label: str,
    kind: int,
    name: str,
    settings: list[tuple[str, str | None]],
    times: int = 1,
    **more: Any,
) -> None:
    """Sets, by the API under test, and looks at what the resource has then."""
    configs = [{"name": key, "value": value} for key, value in settings]
    one = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = side.ask(label, **({"resources": [one] * times} | more))
    _described(side, label, kind, name, _accepted(answer, settings, more))


def alter_configs(side: Side, version: int) -> None:
    topic, other = side.topic(), side.topic("u")
    for label, kind, name, settings in alterations():
        altered(side, label, kind, name.format(t=topic, u=other), settings)
    altered(side, "loggers", LOGGER, "1", [("org.apache.kafka", "INFO")])
    altered(side, "broker, compaction lags", BROKER, "", list(LAGS.items()))
    altered(side, "only checked", TOPIC, topic, [("retention.ms", "99")], validate_only=True)
    altered(side, "resource twice", TOPIC, topic, [("retention.ms", "98")], times=2)
    side.ask("none", resources=[])
    cleared(side)


def incremental_alter_configs(side: Side, version: int) -> None:
    topic, other = side.topic(), side.topic("u")

    def asked(
        label: str,
        kind: int,
        name: str,
        *edits: Any,
        then: dict[str, str] | None = None,
        **more: Any,
    ) -> None:
        then = then or {}
        configs = [{"name": k, "config_operation": o, "value": v} for k, o, v in edits]
        one = {"resource_type": kind, "resource_name": name, "configs": configs}
        answer = side.ask(label, **({"resources": [one] * more.pop("times", 1)} | more))
        sets = [(key, value) for key, operation, value in edits if operation == SET]
        deleted = {key: "" for key, operation, _ in edits if operation == DELETE}
        _described(side, label, kind, name, deleted | (_accepted(answer, sets, more) or {}) | then)

    for label, kind, name, settings in alterations():
        asked(
            label,
            kind,
            name.format(t=topic, u=other),
            *((key, SET, value) for key, value in settings),
        )
    asked("delete", TOPIC, topic, ("retention.ms", DELETE, None))
    asked("delete what is not set", TOPIC, topic, ("retention.ms", DELETE, None))
    asked("delete with a value", TOPIC, topic, ("segment.ms", DELETE, "5"))
    both = {"cleanup.policy": "delete,compact"}
    asked("append", TOPIC, topic, ("cleanup.policy", APPEND, "compact"), then=both)
    both = {"cleanup.policy": "delete,compact"}
    asked("append again", TOPIC, topic, ("cleanup.policy", APPEND, "compact"), then=both)
    both = {"cleanup.policy": "compact"}
    asked("subtract", TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete"), then=both)
    none = {"cleanup.policy": ""}
    asked("subtract the last", TOPIC, topic, ("cleanup.policy", SUBTRACT, "compact"), then=none)
    asked("append to no list", TOPIC, topic, ("retention.ms", APPEND, "5"))
    asked("append nothing", TOPIC, topic, ("cleanup.policy", APPEND, None))
    asked("no such operation", TOPIC, topic, ("retention.ms", 9, "5"))
    asked("broker, no such operation", BROKER, "1", ("message.max.bytes", 9, "5"))
    asked("only checked", TOPIC, topic, ("retention.ms", SET, "99"), validate_only=True)
    asked("resource twice", TOPIC, topic, ("retention.ms", SET, "98"), times=2)
    name = "org.apache.kafka"
    for level in ("DEBUG", "INFO", "debug", "LOUD", ""):
        asked(f"logger {level!r}", LOGGER, "1", (name, SET, level))
    asked("logger that is not there", LOGGER, "1", ("no.such.logger", SET, "INFO"))
    asked("logger, delete", LOGGER, "1", (name, DELETE, None))
    asked("logger, append", LOGGER, "1", (name, APPEND, "INFO"))
    asked("root logger, delete", LOGGER, "1", ("root", DELETE, None))
    asked("loggers of another", LOGGER, "2", (name, SET, "INFO"))
    asked("loggers of nobody", LOGGER, "", (name, SET, "INFO"))
    lags = [(key, SET, value) for key, value in LAGS.items()]
    asked("broker, compaction lags", BROKER, "", *lags)
    side.ask("none", resources=[])
    cleared(side)


def _described(side: Side, label: str, kind: int, name: str, given: dict[str, str] | None) -> None:
    """What the resource has of its own once it has what was `given` (AlterConfigs gives all that it
    has; None: nothing was accepted): a broker hears of it later than the client.
    """
    if kind not in (TOPIC, CLIENT_METRICS, GROUP) or not name:
        return

    def own(answer: Any) -> dict[str, str]:
        return {
            entry.name: entry.value
            for entry in answer.results[0].configs
            if entry.config_source in (1, 7, 8)
        }

    def arrived(answer: Any) -> bool:
        now = own(answer)
        if given is None:
            return True
        return (side.api != "AlterConfigs" or now.keys() == given.keys()) and all(
            now.get(key, "").lower() == value.strip().lower() for key, value in given.items()
        )

    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]
    found = own(side.settled("DescribeConfigs", arrived, resources=asked))
    side.note(f"{label}: then", sorted(found.items()))


def _accepted(answer: Any, settings: Any, more: dict[str, Any]) -> dict[str, str] | None:
    """The values that a change was answered to have set."""
    responses = getattr(answer, "responses", None)  # none where nobody answered
    if "validate_only" in more or not responses or any(each.error_code for each in responses):
        return None
    return {key: value for key, value in settings if value is not None}


def cleared(side: Side) -> None:
    """Dynamic settings are the cluster's: the next case begins without."""
    for kind, name in ((BROKER, "1"), (BROKER, ""), (CLIENT_METRICS, "m"), (GROUP, "g")):
        answer = side.call(
            "DescribeConfigs",
            4,
            {
                "resources": [
                    {"resource_type": kind, "resource_name": name, "configuration_keys": None}
                ]
            },
        )
        found = [
            {"name": entry.name, "config_operation": DELETE, "value": None}
            for entry in answer.results[0].configs
            if entry.config_source in (2, 3, 7, 8)
            and entry.name != "min.insync.replicas"
            and (kind != BROKER or name != "1" or entry.config_source == 2)
        ]
        one = {"resource_type": kind, "resource_name": name, "configs": found}
        side.latest("IncrementalAlterConfigs", resources=[one])


def list_config_resources(side: Side, version: int) -> None:
    def asked(label: str, *kinds: int) -> None:
        """Topics are those of this case only."""
        answer = side.call("ListConfigResources", version, {"resource_types": list(kinds)})
        answer.config_resources = [
            each
            for each in answer.config_resources
            if each.resource_type != TOPIC or each.resource_name.startswith(side.prefix)
        ]
        side.note(label, answer)

    side.topic()
    edit = {"name": "interval.ms", "config_operation": SET, "value": "5000"}
    one = {"resource_type": CLIENT_METRICS, "resource_name": side.name("m"), "configs": [edit]}
    side.latest("IncrementalAlterConfigs", resources=[one])
    asked("all")
    for kind in (TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP, 0, 99):
        asked(f"type {kind}", kind)
    asked("two types", TOPIC, BROKER)
    delete = {"name": "interval.ms", "config_operation": DELETE, "value": None}
    side.latest("IncrementalAlterConfigs", resources=[one | {"configs": [delete]}])


def describe_log_dirs(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)
    side.write(topic, side.batch(b"a", b"b"))

    def asked(label: str, topics: Any) -> None:
        wanted = (
            None
            if topics is None
            else [{"topic": name, "partitions": list(partitions)} for name, partitions in topics]
        )
        answer = side.call("DescribeLogDirs", version, {"topics": wanted})
        for result in answer.results:
            side.hide(result.log_dir, "(log directory)")
            result.topics = [each for each in result.topics if each.name.startswith(side.prefix)]
            result.usable_bytes = min(result.usable_bytes, 1)
        side.note(label, answer)

    asked("all", None)
    asked("a topic", [(topic, [0, 1])])
    asked("one partition", [(topic, [0])])
    asked("no such partition", [(topic, [9, -1])])
    asked("no such topic", [("nobody", [0])])
    asked("no partitions", [(topic, [])])
    asked("none", [])


def elect_leaders(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)

    def asked(label: str, *partitions: int, name: str = topic, kind: int = 0) -> None:
        wanted = [{"topic": name, "partitions": list(partitions)}]
        side.ask(label, election_type=kind, topic_partitions=wanted, timeout_ms=5000)

    asked("preferred", 0, 1)
    asked("no such partition", 9, -1)
    asked("no such topic", 0, name="nobody")
    asked("no partitions")
    side.ask("none", election_type=0, topic_partitions=[], timeout_ms=5000)
    if version >= 1:
        asked("unclean", 0, kind=1)
        asked("type 5", 0, kind=5)


def alter_partition_reassignments(side: Side, version: int) -> None:
    topic = side.topic(partitions=2)

    def asked(
        label: str, replicas: Any, name: str = topic, partition: int = 0, **more: Any
    ) -> None:
        part = {"partition_index": partition, "replicas": replicas}
        wanted = {"name": name, "partitions": [part] * more.pop("times", 1)}
        side.ask(label, **({"topics": [wanted], "timeout_ms": 5000} | more))

    asked("where it is", [1])
    asked("to a stranger", [7])
    asked("twice to one", [1, 1])
    asked("to nobody", [])
    asked("to a negative id", [-1])
    asked("cancel nothing", None)
    asked("no such topic", [1], "nobody")
    asked("no such partition", [1], partition=9)
    asked("partition -1", [1], partition=-1)
    asked("named twice", [1], times=2)
    side.ask("none", topics=[], timeout_ms=5000)
    if version >= 1:
        asked("another factor", [1, 2], allow_replication_factor_change=False)


def list_partition_reassignments(side: Side, version: int) -> None:
    topic = side.topic()
    for label, topics in (
        ("all", None),
        ("a topic", [{"name": topic, "partition_indexes": [0]}]),
        ("no such partition", [{"name": topic, "partition_indexes": [9]}]),
        ("no such topic", [{"name": "nobody", "partition_indexes": [0]}]),
        ("none", []),
    ):
        side.ask(label, topics=topics, timeout_ms=5000)


def unregister_broker(side: Side, version: int) -> None:
    """Never the broker itself: it would go on as another incarnation on one side."""
    for broker in (7, -1, 2**31 - 1):
        side.ask(f"broker {broker}", broker_id=broker)


def alter_replica_log_dirs(side: Side, version: int) -> None:
    """The broker has one directory: what moves between two is in `tests/api`."""
    topic = side.topic(partitions=2)
    side.write(topic, side.batch(b"a"))
    (found,) = side.latest("DescribeLogDirs", topics=None).results
    here = found.log_dir

    def asked(label: str, path: str, *partitions: int, name: str = topic, times: int = 1) -> None:
        topics = [{"name": name, "partitions": list(partitions)}]
        side.ask(label, dirs=[{"path": path, "topics": topics}] * times)

    asked("where it is", here, 0)
    asked("two partitions", here, 0, 1)
    asked("the same, in other letters", f"{here}/", 0)
    asked("with a detour", f"{here}/x/..", 0)
    for path in ("/no/such/directory", "relative", "", "any", "/"):
        asked(f"to {path!r}", path, 0)
    asked("no such partition", here, 9)
    asked("partition -1", here, -1)
    asked("no such topic", here, 0, name="nobody")
    asked("bad name", here, 0, name="a b")
    asked("no such topic, to nowhere", "/no/such/directory", 0, name="nobody")
    asked("one of two is not there", here, 0, 9)
    asked("a partition twice", here, 0, 0)
    asked("a directory twice", here, 0, times=2)
    asked("no partitions", here)
    side.ask("no topics", dirs=[{"path": here, "topics": []}])
    topics = [{"name": topic, "partitions": [0]}]
    both = [{"path": path, "topics": topics} for path in (here, "/no/such/directory")]
    side.ask("to two directories", dirs=both)
    side.ask("none", dirs=[])


def update_features(side: Side, version: int) -> None:
    """Nothing that would last: the cluster is that of the next cases. Version 0 cannot be asked
    only to check, so it has what is refused and what changes nothing.
    """
    found = side.latest("ApiVersions", client_software_name="compare", client_software_version="1")
    now = {each.name: each.max_version_level for each in found.finalized_features}
    upgrade, safe, unsafe = 1, 2, 3

    def one(name: str, level: int, kind: int = upgrade) -> dict[str, Any]:
        return {
            "feature": name,
            "max_version_level": level,
            "allow_downgrade": kind != upgrade,
            "upgrade_type": kind,
        }

    def many(label: str, *updates: dict[str, Any], **more: Any) -> None:
        side.ask(label, feature_updates=list(updates), timeout_ms=10_000, **more)

    def asked(label: str, name: str, level: int, kind: int = upgrade, **more: Any) -> None:
        many(label, one(name, level, kind), **more)

    many("none")
    for name in ("no.such.version", ""):
        asked(f"feature {name!r}", name, 1)
        asked(f"feature {name!r}, level 0", name, 0, safe)
    for name in ("metadata.version", "transaction.version"):
        asked(f"{name} as it is", name, now[name])
        asked(f"{name} as it is, down", name, now[name], safe)
        asked(f"{name} 99", name, 99)
        asked(f"{name} -1", name, -1)
        asked(f"{name} lower, no downgrade", name, now[name] - 1)
        many(f"{name} is named twice", *[one(name, now[name])] * 2)
    asked("metadata.version 0", "metadata.version", 0, unsafe)
    asked("metadata.version 1", "metadata.version", 1, unsafe)
    level = now["transaction.version"]
    many("one of two is unknown", one("transaction.version", level), one("no.such.version", 1))
    if version >= 1:
        for kind in (0, 4, -1):
            asked(f"upgrade type {kind}", "transaction.version", level, kind)
            asked(f"upgrade type {kind}, lower", "transaction.version", level - 1, kind)
        for kind in (safe, unsafe):
            for name in ("metadata.version", "transaction.version"):
                lower = now[name] - 1
                asked(f"{name}, checked, type {kind}", name, lower, kind, validate_only=True)
        asked("to 0, checked", "transaction.version", 0, safe, validate_only=True)
        asked("99, checked", "transaction.version", 99, validate_only=True)
        asked("unknown, checked", "no.such.version", 1, validate_only=True)
    after = side.latest("ApiVersions", client_software_name="compare", client_software_version="1")
    levels = {each.name: each.max_version_level for each in after.finalized_features}
    side.note("the levels are as they were", levels == now)


def alter_client_quotas(side: Side, version: int) -> None:
    user = side.name("u")

    def part(kind: str, name: str | None) -> dict[str, Any]:
        return {"entity_type": kind, "entity_name": name}

    def one(*entity: dict[str, Any], **values: float | None) -> dict[str, Any]:
        ops = [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in values.items()
        ]
        return {"entity": list(entity), "ops": ops}

    def tidy(answer: Any) -> None:
        for entry in answer.entries:
            entry.entity.sort(key=lambda each: each.entity_type)
        answer.entries.sort(key=lambda each: repr(each.entity))

    def asked(label: str, *entries: dict[str, Any], checked: bool = False) -> None:
        side.ask(label, tidy, entries=list(entries), validate_only=checked)

    of_user, of_client, of_ip = part("user", user), part("client-id", "c"), part("ip", "192.0.2.1")
    asked("none")
    asked("a user", one(of_user, producer_byte_rate=1e6, request_percentage=12.5))
    asked("again as it is", one(of_user, producer_byte_rate=1e6))
    asked("only checked", one(of_user, producer_byte_rate=5e6), checked=True)
    asked("only checked, wrong", one(of_user, nothing=5.0), checked=True)
    both = [of_user, of_client]
    asked("user and client", one(*both, consumer_byte_rate=1e6, controller_mutation_rate=0.5))
    asked("removed what is not there", one(of_user, consumer_byte_rate=None))
    asked("removed", one(of_user, producer_byte_rate=None))
    for key in ("producer_byte_rate", "request_percentage", "connection_creation_rate", "", "x"):
        for value in (1.0, 1.5, 0.0, -1.0, 2.0**31, 2.0**63, 1e300, float("inf")):
            asked(f"user, {key} {value}", one(of_user, **{key: value}))
            asked(f"ip, {key} {value}", one(of_ip, **{key: value}))
    asked("removed, an unknown key", one(of_user, x=None))
    asked("no types", one(producer_byte_rate=1.0))
    asked("no keys", one(of_user))
    asked("an unknown type", one(part("group", "g"), producer_byte_rate=1.0))
    asked("an empty name", one(part("user", ""), producer_byte_rate=1.0))
    asked("ip and user", one(of_ip, of_user, connection_creation_rate=1.0))
    asked("no address", one(part("ip", "no.such.host.invalid"), connection_creation_rate=1.0))
    twice = one(of_user, producer_byte_rate=9e6)
    twice["ops"] *= 2
    asked("a key twice", twice)
    asked("an entity twice", *[one(of_user, producer_byte_rate=9e6)] * 2)
    asked("a type twice", one(of_user, part("user", "v"), producer_byte_rate=9e6))
    asked("one of two is wrong", one(of_user, x=1.0), one(of_client, producer_byte_rate=9e9))
    # Nobody of the next cases has a quota: the entities' names are not theirs.
    for entity in ([of_user], both, [of_ip], [of_client], [part("user", "v")]):
        keys = (
            ("connection_creation_rate",)
            if entity == [of_ip]
            else (
                "producer_byte_rate",
                "consumer_byte_rate",
                "request_percentage",
                "controller_mutation_rate",
            )
        )
        asked(
            f"removed all {len(entity)} {entity[0]['entity_type']}",
            one(*entity, **dict.fromkeys(keys)),
        )


def describe_client_quotas(side: Side, version: int) -> None:
    user = side.name("u")

    def part(kind: str, name: str | None) -> dict[str, Any]:
        return {"entity_type": kind, "entity_name": name}

    def component(kind: str, match_type: int, name: str | None = None) -> dict[str, Any]:
        return {"entity_type": kind, "match_type": match_type, "match": name}

    def altered(remove: bool) -> None:
        entities = [
            [part("user", user)],
            [part("user", user), part("client-id", None)],
            [part("client-id", user)],
        ]
        ops = [
            {"key": key, "value": 1e9, "remove": remove}
            for key in ("producer_byte_rate", "consumer_byte_rate")
        ]
        found = side.latest(
            "AlterClientQuotas",
            entries=[{"entity": each, "ops": ops} for each in entities],
            validate_only=False,
        )
        assert not any(each.error_code for each in found.entries), found

    def tidy(answer: Any) -> None:
        for entry in answer.entries or ():
            entry.entity.sort(key=lambda each: each.entity_type)
            entry.values.sort(key=lambda each: each.key)
        if answer.entries is not None:
            answer.entries.sort(key=repr)

    def asked(label: str, *components: dict[str, Any], strict: bool = False) -> None:
        side.ask(label, tidy, components=list(components), strict=strict)

    exact, default, specified = range(3)
    of_user, of_client = component("user", exact, user), component("client-id", specified)
    altered(remove=False)
    side.settled(
        "DescribeClientQuotas",
        lambda answer: len(answer.entries) == 1,
        components=[component("client-id", exact, user)],
        strict=True,
    )
    asked("a user", of_user)
    asked("a user only", of_user, strict=True)
    asked("a user and any client", of_user, of_client)
    asked("a user and the default client", of_user, component("client-id", default), strict=True)
    asked("a client", component("client-id", exact, user))
    asked("nobody", component("user", exact, "nobody"))
    asked("the default user", component("user", default))
    asked("any address", component("ip", specified))
    asked("an empty type", component("", exact, "x"))
    asked("an unknown type", component("group", exact, "x"))
    asked("a type twice", of_user, component("user", specified))
    asked("an address and a user", of_user, component("ip", specified))
    asked("no name", component("user", exact))
    asked("a default with a name", component("user", default, "x"))
    asked("any with a name", component("user", specified, "x"))
    for match_type in (3, -1):
        asked(f"match type {match_type}", component("user", match_type))
    altered(remove=True)
