"""THE settings table: every setting under Kafka's own name.

Owns the rows (`BROKER_SETTINGS`, `TOPIC_SETTINGS`). Command-line options, DescribeConfigs,
AlterConfigs and the documentation are derived from them.

1. A setting is one row; nobody else knows its default or range.
2. A topic's value comes from the topic, else from the broker's setting of the same meaning (changed
   while running before the file's), else from the row.
3. A setting of Kafka's that we cannot honour safely (`REFUSED`) stops the start. One that has no
   meaning here (`known_settings.py`) is named in the log once; a wrong value of it stops the start,
   too.

Source: Kafka 4.3.1's `AbstractKafkaConfig` and `LogConfig` for names, types, defaults and ranges;
sample server.properties for `SAMPLE_VALUES`. Rows are added when the code that obeys them is.
Not here: the values that a broker has (`broker_config.py`), or a topic (`log_config.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from twisted_broker.known_settings import broker_settings as known_broker_settings
from twisted_broker.settings import (
    INT_MAX,
    LONG_MAX,
    Setting,
    Type,
)

_CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000


def _table(*rows: Setting) -> dict[str, Setting]:
    return {row.name: row for row in rows}


def _number(
    kind: Type,
    name: str,
    default: int | None,
    doc: str,
    low: int | None = None,
    unit: str = "",
    **more: Any,
) -> Setting:
    return Setting(name, kind, default, doc, unit=unit, low=low, nullable=default is None, **more)


def _int(name: str, default: int | None, doc: str, low: int | None = None, **more: Any) -> Setting:
    return _number(Type.INT, name, default, doc, low, **more)


def _long(name: str, default: int | None, doc: str, low: int | None = None, **more: Any) -> Setting:
    return _number(Type.LONG, name, default, doc, low, **more)


def _ms(name: str, default: int | None, doc: str, low: int | None = None, **more: Any) -> Setting:
    return _number(Type.LONG, name, default, doc, low, unit="ms", **more)


def _bytes(
    name: str, default: int | None, doc: str, low: int | None = None, **more: Any
) -> Setting:
    return _number(Type.INT, name, default, doc, low, unit="bytes", **more)


def _flag(name: str, default: bool, doc: str, **more: Any) -> Setting:
    return Setting(name, Type.BOOLEAN, default, doc, **more)


def _text(name: str, default: str | None, doc: str, **more: Any) -> Setting:
    return Setting(name, Type.STRING, default, doc, nullable=default is None, **more)


def _list(name: str, default: tuple[str, ...] | None, doc: str, **more: Any) -> Setting:
    return Setting(name, Type.LIST, default, doc, nullable=default is None, **more)


def _password(name: str, doc: str, **more: Any) -> Setting:
    return Setting(name, Type.PASSWORD, None, doc, nullable=True, **more)


def _group_rows(kind: str) -> list[Setting]:
    """Those that every newer kind of groups has. A group's own `kind.x` stands before
    `group.kind.x`, and between `group.kind.min.x` and `group.kind.max.x`.
    """
    rows: list[Setting] = []
    for name, default, low, least, most, doc, is_live in (
        ("session.timeout", 45000, 1, 45000, 60000, "Silence after which a member is gone", False),
        ("heartbeat.interval", 5000, 1, 5000, 15000, "Time between a member's heartbeats", False),
        ("assignment.interval", 1000, 0, 0, 15000, "Shortest time between assignments", True),
    ):
        rows += (
            _int(f"group.{kind}.{name}.ms", default, f"{doc}.", low, unit="ms", live=is_live),
            _int(f"group.{kind}.min.{name}.ms", least, f"{doc}: a group's least.", low, unit="ms"),
            _int(f"group.{kind}.max.{name}.ms", most, f"{doc}: a group's most.", low, unit="ms"),
        )
    return rows


def _streams_group_rows() -> tuple[Setting, ...]:
    """Those of KIP-1071."""
    return (
        *_group_rows("streams"),
        _int("group.streams.max.size", INT_MAX, "Members of one streams group.", 1),
        _int(
            "group.streams.initial.rebalance.delay.ms",
            3000,
            "Wait for more members before a new streams group's first assignment.",
            0,
            unit="ms",
        ),
        _int("group.streams.num.standby.replicas", 0, "Standbys of each task with a state.", 0),
        _int("group.streams.max.standby.replicas", 2, "Standbys: a group's most.", 0),
    )


def _share_group_rows() -> tuple[Setting, ...]:
    """Those of the members of share groups (KIP-932)."""
    return (
        *_group_rows("share"),
        _int("group.share.max.size", 200, "Members of one share group.", 1, high=1000),
        _list("group.share.assignors", ("simple",), "The assignor of share groups."),
        _int(
            "group.share.initialize.retry.interval.ms",
            30000,
            "Time after which the state of a share partition is asked for again.",
            1,
            unit="ms",
            internal=True,
        ),
    )


def _consumer_group_rows() -> tuple[Setting, ...]:
    """Those of KIP-848."""
    return (
        *_group_rows("consumer"),
        _int("group.consumer.max.size", INT_MAX, "Members of one consumer group.", 1),
        _list(
            "group.consumer.assignors",
            ("uniform", "range"),
            "Assignors of consumer groups; the first is used where members name none.",
        ),
        _text(
            "group.consumer.migration.policy",
            "bidirectional",
            "Whether a group with members changes between the classic and the consumer protocol.",
        ),
        _int(
            "group.consumer.regex.refresh.interval.ms",
            600000,
            "Time after which the topics of a pattern are looked up again.",
            10000,
            unit="ms",
            internal=True,
        ),
    )


def _share_partition_rows() -> tuple[Setting, ...]:
    """What the leaders of share groups' partitions obey. A group's own `share.x` stands before
    `group.share.x`, and between `group.share.min.x` and `group.share.max.x`.
    """
    rows: list[Setting] = []
    for name, unit, doc, *numbers in (
        ("delivery.count.limit", "", "Deliveries of a record", (5, 2, 10), (2, 2, 5), (10, 5, 25)),
        (
            "record.lock.duration.ms",
            "ms",
            "Time for which a member holds a record",
            (30000, 1000, 3600000),
            (15000, 1000, 30000),
            (60000, 30000, 3600000),
        ),
        (
            "partition.max.record.locks",
            "",
            "Records between the first and the last that are in flight in a share partition",
            (2000, 100, 10000),
            (100, 100, 2000),
            (4000, 2000, 10000),
        ),
    ):
        for kind, said, (default, low, high) in zip(
            ("", "min.", "max."),
            ("", ": a group's least", ": a group's most"),
            numbers,
            strict=True,
        ):
            rows.append(
                _int(
                    f"group.share.{kind}{name}",
                    default,
                    f"{doc}{said}.",
                    low,
                    high=high,
                    unit=unit,
                )
            )
    return (
        *rows,
        _int(
            "group.share.max.share.sessions",
            2000,
            "Sessions of share consumers that one broker keeps; at least group.share.max.size.",
            1,
        ),
        _int(
            "share.fetch.purgatory.purge.interval.requests",
            1000,
            "Completed share fetches kept in the purgatory before it is purged.",
        ),
    )


def _tls_rows() -> tuple[Setting, ...]:
    """The rows of TLS. Each may also be set as `listener.name.NAME.x`; only that form is live."""
    return (
        _text("ssl.keystore.location", None, "File with the private key.", live=True),
        _text("ssl.keystore.type", "JKS", "JKS or PKCS12 (either reads both), or PEM.", live=True),
        _password("ssl.keystore.password", "Of the key store; none with PEM.", live=True),
        _password(
            "ssl.key.password", "Of the private key; if not set, the key store's.", live=True
        ),
        _password("ssl.keystore.key", "The private key itself, in PEM.", live=True),
        _password(
            "ssl.keystore.certificate.chain", "The certificates of ssl.keystore.key.", live=True
        ),
        _text(
            "ssl.truststore.location",
            None,
            "File with the certificates of those who may sign others; if neither this nor "
            "ssl.truststore.certificates is set, the system's.",
            live=True,
        ),
        _text("ssl.truststore.type", "JKS", "As ssl.keystore.type.", live=True),
        _password("ssl.truststore.password", "Of the trust store; none with PEM.", live=True),
        _password("ssl.truststore.certificates", "Trusted certificates, in PEM.", live=True),
        _text(
            "ssl.client.auth",
            "none",
            "Whether clients show a certificate, which then names their principal.",
            choices=("required", "requested", "none"),
            live=True,
        ),
        _text(
            "ssl.principal.mapping.rules",
            "DEFAULT",
            "From the subject of a client's certificate to its name: "
            "RULE:PATTERN/REPLACEMENT/[LU], DEFAULT.",
        ),
        _list("ssl.enabled.protocols", ("TLSv1.2", "TLSv1.3"), "Versions of TLS.", live=True),
        _text(
            "ssl.protocol", "TLSv1.3", "Newest version in connections to other nodes.", live=True
        ),
        _list(
            "ssl.cipher.suites",
            (),
            "Cipher suites; if not set, of TLS 1.3, and of 1.2 without CBC.",
            live=True,
        ),
        _text(
            "ssl.endpoint.identification.algorithm",
            "https",
            "Whether the certificate of a node must be for the name by which it is called; empty: "
            "for any.",
            live=True,
        ),
        _flag("ssl.allow.dn.changes", False, "Whether a new key store may have another subject."),
        _flag("ssl.allow.san.changes", False, "Whether a new key store may lack names."),
    )


BROKER_SETTINGS: dict[str, Setting] = _table(
    # identity and membership
    _int("node.id", 1, "Number of this node in its cluster.", 0),
    _list(
        "process.roles",
        ("broker", "controller"),
        "What this process is.",
        choices=("broker", "controller"),
    ),
    _text(
        "broker.rack",
        None,
        "Rack of this broker, for placement of replicas and for consumers that fetch nearby.",
    ),
    _list(
        "listeners",
        ("PLAINTEXT://:9092",),
        "Addresses to listen on, as NAME://HOST:PORT; port 0 picks a free one.",
        live=True,
    ),
    _list(
        "advertised.listeners",
        None,
        "Addresses given to clients and other brokers; listeners if not set.",
    ),
    _list(
        "controller.listener.names",
        ("CONTROLLER",),
        "Names of the listeners that belong to the controller.",
    ),
    _list(
        "early.start.listeners",
        None,
        "Listeners that accept connections before the ACLs are loaded: until then only super users "
        "are served. If not set, the controllers'. A broker's own accept none before that.",
    ),
    _text(
        "inter.broker.listener.name",
        None,
        "Name of the listener that other brokers connect to; if not set, the broker's first.",
    ),
    _text(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of each listener name; if not set, a controller's name stands for "
        "PLAINTEXT where no listener is named SSL, SASL_PLAINTEXT or SASL_SSL.",
        live=True,
    ),
    _text(
        "security.inter.broker.protocol",
        "PLAINTEXT",
        "Protocol, and so the name, of the listener that other brokers connect to, where "
        "inter.broker.listener.name is not set.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ),
    _list(
        "sasl.enabled.mechanisms",
        ("GSSAPI",),
        "SASL mechanisms that listeners with SASL offer; Kafka's default, GSSAPI, is not "
        "supported.",
        live=True,
    ),
    Setting(
        "sasl.jaas.config",
        Type.PASSWORD,
        None,
        "A login module with its options; for brokers as "
        "listener.name.NAME.MECHANISM.sasl.jaas.config.",
        nullable=True,
        live=True,
    ),
    _text(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        "By which SASL mechanism this broker authenticates itself to other brokers.",
    ),
    _text(
        "sasl.mechanism.controller.protocol",
        "GSSAPI",
        "By which SASL mechanism this broker authenticates itself to controllers.",
    ),
    _text(
        "sasl.oauthbearer.jwks.endpoint.url",
        None,
        "Where the keys are that verify tokens of OAUTHBEARER: a URL, or file:///PATH.",
    ),
    _ms(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        3_600_000,
        "How often these keys are read again.",
        1000,
    ),
    _list(
        "sasl.oauthbearer.expected.audience",
        (),
        "Of these a token must name one as its audience; empty: any, or none.",
    ),
    _text(
        "sasl.oauthbearer.expected.issuer", None, "Whose tokens are accepted; not set: anybody's."
    ),
    _int(
        "sasl.oauthbearer.clock.skew.seconds",
        30,
        "How much the clocks of a token's issuer and of this node may differ.",
        0,
        unit="s",
    ),
    _text("sasl.oauthbearer.sub.claim.name", "sub", "The claim of a token that names the user."),
    _text(
        "sasl.oauthbearer.token.endpoint.url",
        None,
        "Where this node gets the access token by which it logs in to others: a URL, or "
        "file:///PATH of the token.",
    ),
    Setting(
        "sasl.oauthbearer.jwt.retriever.class",
        Type.CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        "How it gets that token: Kafka's name of the one for files, for client credentials, or of "
        "the default, which takes either.",
    ),
    _text(
        "sasl.oauthbearer.client.credentials.client.id",
        None,
        "The client id for that endpoint; before clientId of the JAAS line.",
    ),
    _password(
        "sasl.oauthbearer.client.credentials.client.secret",
        "The secret of that client; before clientSecret of the JAAS line.",
    ),
    _text("sasl.oauthbearer.scope", None, "The scope of the token; before scope of the JAAS line."),
    _bytes(
        "sasl.server.max.receive.size",
        524_288,
        "Longest frame of a connection that has not authenticated itself yet.",
    ),
    _ms(
        "connections.max.reauth.ms",
        0,
        "After this time a SASL connection must authenticate again; 0: never.",
    ),
    _int(
        "connection.failed.authentication.delay.ms",
        100,
        "How long a failed authentication is answered later; less than connections.max.idle.ms.",
        0,
        unit="ms",
    ),
    _password(
        "delegation.token.secret.key",
        "From which delegation tokens are made, the same on all nodes; not set: there are none.",
    ),
    _ms(
        "delegation.token.max.lifetime.ms",
        604_800_000,
        "Longest life of a delegation token, however often it is renewed.",
        1,
    ),
    _ms(
        "delegation.token.expiry.time.ms",
        86_400_000,
        "Time after which a delegation token must be renewed.",
        1,
    ),
    _ms(
        "delegation.token.expiry.check.interval.ms",
        3_600_000,
        "How often delegation tokens that expired are removed.",
        1,
    ),
    *_tls_rows(),
    _list("controller.quorum.voters", (), "Controllers, as ID@HOST:PORT."),
    _list(
        "controller.quorum.bootstrap.servers", (), "Addresses at which a controller can be found."
    ),
    _flag(
        "controller.quorum.auto.join.enable",
        False,
        "Whether a controller that follows the quorum becomes one of its voters by itself.",
    ),
    _int(
        "controller.quorum.election.timeout.ms",
        1000,
        "Wait for votes, at random up to twice as long, before a controller tries again.",
        1,
        unit="ms",
    ),
    _int(
        "controller.quorum.election.backoff.max.ms",
        1000,
        "Wait of the last controller before it tries to follow one that hands over.",
        0,
        unit="ms",
    ),
    _int(
        "controller.quorum.fetch.max.bytes",
        1048576,
        "Most bytes that a controller fetches of another's log at once.",
        1,
        unit="bytes",
    ),
    _int(
        "controller.quorum.fetch.snapshot.max.bytes",
        1048576,
        "Most bytes that a controller fetches of another's snapshot at once.",
        1,
        unit="bytes",
    ),
    _int(
        "controller.quorum.fetch.timeout.ms",
        2000,
        "Time without an answer after which another controller is looked for.",
        0,
        unit="ms",
    ),
    _int(
        "controller.quorum.request.timeout.ms",
        2000,
        "Wait for a controller's answer.",
        0,
        unit="ms",
    ),
    _int(
        "controller.quorum.retry.backoff.ms",
        20,
        "Pause before a request to the controller is sent again.",
        0,
        unit="ms",
    ),
    _int(
        "broker.heartbeat.interval.ms",
        2000,
        "Time between heartbeats to the controller.",
        1,
        unit="ms",
    ),
    _int(
        "broker.session.timeout.ms",
        9000,
        "Time without a heartbeat after which the controller fences a broker.",
        1,
        unit="ms",
    ),
    _int(
        "initial.broker.registration.timeout.ms",
        60000,
        "Time in which the first registration must succeed.",
        1,
        unit="ms",
    ),
    _flag("controlled.shutdown.enable", True, "Hand leadership over before stopping."),
    _ms(
        "replog.controlled.shutdown.timeout.ms",
        10000,
        "Longest wait, when stopping, for the controller to hand leadership over.",
        0,
    ),
    _int(
        "metadata.max.idle.interval.ms",
        500,
        "Time between empty records of the metadata log; 0 writes none.",
        0,
        unit="ms",
    ),
    _long(
        "metadata.log.max.record.bytes.between.snapshots",
        20971520,
        "Metadata bytes after which a snapshot is written.",
        1,
        unit="bytes",
    ),
    _ms(
        "metadata.log.max.snapshot.interval.ms",
        3600000,
        "Time after which a snapshot is written; 0 never by time.",
        0,
    ),
    _long(
        "metadata.max.retention.bytes",
        100 << 20,
        "Size of the metadata log and its snapshots beyond which the oldest snapshot goes, and the "
        "log before the next one, where several controllers vote.",
        unit="bytes",
    ),
    _ms(
        "metadata.max.retention.ms",
        604_800_000,
        "Age of the oldest snapshot at which it goes, and the log before the next one, where "
        "several controllers vote.",
    ),
    _text(
        "metadata.log.dir",
        None,
        "Where the metadata log is, in log.dirs or not; if not set, the first.",
    ),
    # connections
    _bytes("socket.request.max.bytes", 104857600, "Longest request that is read.", 1),
    _long(
        "queued.max.request.bytes",
        134217728,
        "Bytes of long requests in memory at a time, over all connections; -1: no limit.",
        unit="bytes",
    ),
    _int("socket.listen.backlog.size", 50, "Connections that may wait to be accepted.", 1),
    _bytes(
        "socket.send.buffer.bytes",
        102400,
        "Send buffer of a connection; -1 leaves it to the system.",
    ),
    _bytes(
        "socket.receive.buffer.bytes",
        102400,
        "Receive buffer of a connection; -1 leaves it to the system.",
    ),
    _ms("connections.max.idle.ms", 600000, "Idle time after which a connection is closed."),
    _int("max.connections", INT_MAX, "Connections in all.", 0, live=True),
    _int("max.connections.per.ip", INT_MAX, "Connections from one address.", 0, live=True),
    _text(
        "max.connections.per.ip.overrides",
        "",
        "Other limits for some addresses: ADDRESS:COUNT,ADDRESS:COUNT.",
        live=True,
    ),
    _int(
        "max.connection.creation.rate",
        INT_MAX,
        "New connections per second, in all; of a listener with its prefix.",
        0,
        live=True,
    ),
    _int("request.timeout.ms", 30000, "Wait for the answer of another node.", 1, unit="ms"),
    # quotas
    _int("quota.window.num", 11, "Windows over which the rates of clients are measured.", 1),
    _int("quota.window.size.seconds", 1, "Length of such a window.", 1, unit="s"),
    _int(
        "controller.quota.window.num",
        11,
        "Windows over which a client's changes of topics are measured.",
        1,
    ),
    _int("controller.quota.window.size.seconds", 1, "Length of such a window.", 1, unit="s"),
    # access control
    _text(
        "authorizer.class.name",
        "",
        "Who decides what a client may do: the ACLs of the cluster's metadata; empty: everybody "
        "may do everything.",
        choices=("", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    ),
    _text(
        "super.users",
        "",
        "Principals that may do everything, as User:NAME;User:NAME.",
        internal=True,
    ),
    _flag(
        "allow.everyone.if.no.acl.found",
        False,
        "Allow everybody what no ACL names.",
        internal=True,
    ),
    # topics
    _flag("auto.create.topics.enable", True, "Create a topic when a client first names it."),
    _flag("delete.topic.enable", True, "Allow topics to be deleted."),
    _int("num.partitions", 1, "Partitions of a topic that is created without a number.", 1),
    _int(
        "default.replication.factor", 1, "Replicas of a topic that is created without a number.", 1
    ),
    _int(
        "min.insync.replicas",
        1,
        "Replicas that must be in sync for a produce with acks=all.",
        1,
        live=True,
    ),
    _flag(
        "unclean.leader.election.enable",
        False,
        "Allow a leader from outside the ISR; acknowledged records may be lost.",
        live=True,
    ),
    _flag(
        "auto.leader.rebalance.enable",
        True,
        "Let the controller move leadership back to the preferred leaders.",
    ),
    _int(
        "leader.imbalance.per.broker.percentage",
        10,
        "Share of a broker's preferred partitions that others may lead.",
        0,
        unit="%",
    ),
    _long(
        "leader.imbalance.check.interval.seconds",
        300,
        "Time between checks for leaders that are not the preferred ones.",
        1,
        unit="s",
    ),
    _bytes("message.max.bytes", 1048588, "Largest record batch, compressed.", 0, live=True),
    _text("compression.type", "producer", "Codec of the log.", choices=_CODECS, live=True),
    _int("compression.gzip.level", -1, "Level of gzip.", 1, high=9, extra=-1, live=True),
    _int("compression.lz4.level", 9, "Level of lz4.", 1, high=17, live=True),
    _int("compression.zstd.level", 3, "Level of zstd.", -131072, high=22, live=True),
    # fetch and replication
    _bytes("fetch.max.bytes", 57671680, "Most bytes of a fetch answer.", 1024),
    _int(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "Most incremental fetch sessions kept at a time.",
        0,
    ),
    _int(
        "max.request.partition.size.limit",
        2000,
        "Most partitions in one answer of DescribeTopicPartitions.",
        1,
    ),
    _ms(
        "replica.lag.time.max.ms",
        30000,
        "Time after which a follower that did not catch up leaves the ISR.",
    ),
    _ms(
        "replica.high.watermark.checkpoint.interval.ms",
        5000,
        "Time between checkpoints of the high watermarks.",
    ),
    _list(
        "cordoned.log.dirs",
        (),
        "Log directories where no new replica is placed (*: all).",
        live=True,
    ),
    _int("num.replica.fetchers", 1, "Fetchers per leader broker.", 1, live=True),
    _int(
        "num.replica.alter.log.dirs.threads",
        None,
        "Replicas that move between log directories at a time; one per directory by default.",
        1,
    ),
    _long(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG_MAX,
        "What all moves between log directories copy at most in a second.",
        0,
        unit="bytes",
        live=True,
    ),
    _long(
        "leader.replication.throttled.rate",
        LONG_MAX,
        "What this broker sends in a second to throttled replicas that are not in sync.",
        0,
        unit="bytes",
        live=True,
    ),
    _long(
        "follower.replication.throttled.rate",
        LONG_MAX,
        "What this broker fetches in a second for its throttled replicas that are not in sync.",
        0,
        unit="bytes",
        live=True,
    ),
    _int(
        "replication.quota.window.num",
        11,
        "Windows over which the rates of throttled replicas are measured.",
        1,
    ),
    _int(
        "alter.log.dirs.replication.quota.window.num",
        11,
        "Windows over which the rate of copies between log directories is measured.",
        1,
    ),
    _int(
        "alter.log.dirs.replication.quota.window.size.seconds",
        1,
        "Length of one of these windows.",
        1,
        unit="s",
    ),
    _int(
        "replication.quota.window.size.seconds",
        1,
        "Length of one of these windows.",
        1,
        unit="s",
    ),
    _int(
        "replica.fetch.wait.max.ms",
        500,
        "Longest wait of a follower's fetch for records.",
        0,
        unit="ms",
    ),
    _int(
        "replica.fetch.min.bytes", 1, "Bytes for which a follower's fetch waits.", 0, unit="bytes"
    ),
    _bytes(
        "replica.fetch.max.bytes", 1048576, "Bytes that a follower requests of one partition.", 0
    ),
    _bytes(
        "replica.fetch.response.max.bytes",
        10485760,
        "Bytes of the answer to a follower's fetch.",
        0,
    ),
    _int("replica.fetch.backoff.ms", 1000, "Pause of a follower after an error.", 0, unit="ms"),
    _int(
        "replica.socket.timeout.ms",
        30000,
        "Wait of a follower for its leader's answer.",
        1,
        unit="ms",
    ),
    _text(
        "replica.selector.class",
        None,
        (
            "Which replica consumers that name their rack are sent to: the nearest in sync, or "
            "the leader. No class is loaded."
        ),
        choices=(
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            "org.apache.kafka.common.replica.LeaderSelector",
        ),
    ),
    _flag(
        "replog.refuse.unclean.truncation",
        False,
        "Stop a follower whose leader has a shorter log, instead of truncating it.",
        live=True,
    ),
    _int(
        "fetch.purgatory.purge.interval.requests",
        1000,
        "Completed fetches kept in the purgatory before it is purged.",
    ),
    _int(
        "producer.purgatory.purge.interval.requests",
        1000,
        "Completed produces kept in the purgatory before it is purged.",
    ),
    _int(
        "delete.records.purgatory.purge.interval.requests",
        1,
        "Completed DeleteRecords kept in the purgatory before it is purged.",
    ),
    # log
    _list("log.dirs", None, "Directories of the logs."),
    _list("log.dir", ("/tmp/kafka-logs",), "Directory of the logs when log.dirs is not set."),
    _bytes("log.segment.bytes", 1073741824, "Size at which a segment rolls.", 1048576, live=True),
    _ms("log.roll.ms", None, "Age at which a segment rolls.", live=True),
    _int("log.roll.hours", 168, "Age at which a segment rolls.", 1, unit="h"),
    _ms(
        "log.roll.jitter.ms",
        None,
        "Random part subtracted from the age at which a segment rolls.",
        live=True,
    ),
    _int(
        "log.roll.jitter.hours",
        0,
        "Random part subtracted from the age at which a segment rolls.",
        0,
        unit="h",
    ),
    _ms("log.retention.ms", None, "Age at which records may be deleted; -1 never.", live=True),
    _int("log.retention.minutes", None, "Age at which records may be deleted.", unit="min"),
    _int("log.retention.hours", 168, "Age at which records may be deleted.", unit="h"),
    _long(
        "log.retention.bytes",
        -1,
        "Size of a partition above which its oldest segments are deleted; -1: no limit.",
        unit="bytes",
        live=True,
    ),
    _ms(
        "log.retention.check.interval.ms", 300000, "Time between checks for segments to delete.", 1
    ),
    _list(
        "log.cleanup.policy",
        ("delete",),
        "What happens to old segments.",
        choices=("compact", "delete"),
        live=True,
    ),
    _bytes(
        "log.index.size.max.bytes",
        10485760,
        "Size of an index at which its segment rolls.",
        4,
        live=True,
    ),
    _bytes(
        "log.index.interval.bytes",
        4096,
        "Record bytes between two entries of an index.",
        0,
        live=True,
    ),
    _long(
        "log.flush.interval.messages",
        LONG_MAX,
        "Records after which a log is synced.",
        1,
        live=True,
    ),
    _ms("log.flush.interval.ms", None, "Time after which a log is synced.", live=True),
    _ms("log.flush.scheduler.interval.ms", LONG_MAX, "Time between checks for logs to sync."),
    _int(
        "log.flush.offset.checkpoint.interval.ms",
        60000,
        "Time between checkpoints of the recovery points.",
        0,
        unit="ms",
    ),
    _int(
        "log.flush.start.offset.checkpoint.interval.ms",
        60000,
        "Time between checkpoints of the log start offsets.",
        0,
        unit="ms",
    ),
    _ms(
        "log.segment.delete.delay.ms",
        60000,
        "Time between taking a segment out of a log and deleting its files.",
        0,
        live=True,
    ),
    _flag("log.preallocate", False, "Allocate the disk space of a new segment at once.", live=True),
    _text(
        "log.message.timestamp.type",
        "CreateTime",
        "Timestamp of a record: the producer's, or the time of the append.",
        choices=("CreateTime", "LogAppendTime"),
        live=True,
    ),
    _ms(
        "log.message.timestamp.before.max.ms",
        LONG_MAX,
        "How far in the past a record's time may lie.",
        0,
        live=True,
    ),
    _ms(
        "log.message.timestamp.after.max.ms",
        3600000,
        "How far in the future a record's time may lie.",
        0,
        live=True,
    ),
    _ms(
        "log.cleaner.delete.retention.ms",
        86400000,
        "Time for which a compacted log keeps its tombstones.",
        0,
        live=True,
    ),
    _ms(
        "log.cleaner.min.compaction.lag.ms",
        0,
        "Age below which a record is not compacted.",
        0,
        live=True,
    ),
    _ms(
        "log.cleaner.max.compaction.lag.ms",
        LONG_MAX,
        "Age above which a record must be compacted.",
        1,
        live=True,
    ),
    Setting(
        "log.cleaner.min.cleanable.ratio",
        Type.DOUBLE,
        0.5,
        "Share of a log that must be dirty to be compacted.",
        low=0.0,
        high=1.0,
        live=True,
    ),
    _flag("log.cleaner.enable", True, "Whether compacted topics are cleaned."),
    _int("log.cleaner.threads", 1, "Logs that are cleaned at a time.", 0, live=True),
    _ms(
        "log.cleaner.backoff.ms",
        15000,
        "Time after which it is looked again whether a log is to be cleaned.",
        0,
        live=True,
    ),
    _long(
        "log.cleaner.dedupe.buffer.size",
        134217728,
        "Memory for the keys of the rounds that run, all together.",
        unit="bytes",
        live=True,
    ),
    Setting(
        "log.cleaner.io.buffer.load.factor",
        Type.DOUBLE,
        0.9,
        "Share of that memory that is filled.",
        live=True,
    ),
    Setting(
        "log.cleaner.io.max.bytes.per.second",
        Type.DOUBLE,
        1.7976931348623157e308,
        "What a round reads and writes at most in a second.",
        live=True,
    ),
    _int(
        "producer.id.expiration.ms",
        86400000,
        "Idle time after which the state of an idempotent producer is removed.",
        1,
        unit="ms",
        live=True,
    ),
    _int(
        "producer.id.expiration.check.interval.ms",
        600000,
        "Time between checks for producers to remove.",
        1,
        unit="ms",
    ),
    _flag(
        "transaction.partition.verification.enable",
        True,
        "Ask a transaction's coordinator before its first record is appended to a partition.",
        live=True,
    ),
    _int(
        "add.partitions.to.txn.retry.backoff.ms",
        20,
        "Time between tries to add a partition to a transaction, while the one before ends.",
        1,
        unit="ms",
    ),
    _int(
        "add.partitions.to.txn.retry.backoff.max.ms",
        100,
        "Time for which that is tried.",
        0,
        unit="ms",
    ),
    _int(
        "replog.status.port",
        0,
        "Port on 127.0.0.1 for the page /, /metrics, /healthz and /readyz; 0 picks a free one, -1 "
        "none.",
        -1,
        high=65535,
    ),
    _int(
        "replog.reactor.slow.ms",
        50,
        "Turns of the reactor longer than that are counted and logged with what ran; 0: none.",
        0,
        unit="ms",
    ),
    _int(
        "replog.request.slow.ms",
        10000,
        "Requests that wait longer than that for their answer are logged with what they waited "
        "for; 0: none.",
        0,
        unit="ms",
    ),
    _long(
        "replog.log.dir.free.warn.bytes",
        1 << 30,
        "Warn when the disk of a log directory has less than that left, what is one segment by "
        "default; 0: never.",
        0,
        unit="bytes",
        live=True,
    ),
    _int("replog.max.open.segments", 512, "Segment files held open at a time.", 8),
    _flag(
        "replog.validate.records",
        False,
        "Walk the records of every batch on append, as Kafka does.",
    ),
    # what clients push of their metrics
    _flag(
        "replog.client.telemetry",
        True,
        "List GetTelemetrySubscriptions and PushTelemetry in ApiVersions: clients ask which "
        "metrics they should push, and push what client-metrics resources name.",
    ),
    _bytes(
        "telemetry.max.bytes",
        1048576,
        "Size of what a client pushes at once, compressed or not; 4 MiB at most, whatever is set.",
        1,
    ),
    # the state of share partitions
    _int(
        "share.coordinator.state.topic.num.partitions",
        50,
        "Partitions of __share_group_state.",
        1,
    ),
    _number(
        Type.SHORT,
        "share.coordinator.state.topic.replication.factor",
        3,
        "Replicas of __share_group_state; it is not made while fewer brokers are registered.",
        1,
    ),
    _number(
        Type.SHORT,
        "share.coordinator.state.topic.min.isr",
        2,
        "Replicas in sync that __share_group_state needs to be written.",
        1,
    ),
    _bytes(
        "share.coordinator.state.topic.segment.bytes",
        104857600,
        "Size at which a segment of __share_group_state rolls.",
        1048576,  # what a topic's segment.bytes must be at least
    ),
    _bytes(
        "share.coordinator.load.buffer.size",
        5242880,
        "Bytes read at a time while the state of share partitions is loaded.",
        1,
    ),
    _int(
        "share.coordinator.snapshot.update.records.per.snapshot",
        500,
        "Updates of a share partition's state between two snapshots.",
        0,
        high=500,
    ),
    _int(
        "share.coordinator.write.timeout.ms",
        5000,
        "Longest wait for the replicas of __share_group_state.",
        1,
        unit="ms",
    ),
    _int(
        "share.coordinator.state.topic.prune.interval.ms",
        300000,
        "Time between deletions of what is redundant in __share_group_state.",
        1,
        unit="ms",
        internal=True,
    ),
    _int(
        "share.coordinator.cold.partition.snapshot.interval.ms",
        300000,
        "Age at which the last snapshot of a share partition that is not written to is made anew.",
        1,
        unit="ms",
        internal=True,
    ),
    # transactions
    _int("transaction.state.log.num.partitions", 50, "Partitions of __transaction_state.", 1),
    _number(
        Type.SHORT,
        "transaction.state.log.replication.factor",
        3,
        "Replicas of __transaction_state; it is not made while fewer brokers are registered.",
        1,
    ),
    _int(
        "transaction.state.log.min.isr",
        2,
        "Replicas in sync that __transaction_state needs to be written.",
        1,
    ),
    _bytes(
        "transaction.state.log.segment.bytes",
        104857600,
        "Size at which a segment of __transaction_state rolls.",
        1048576,  # what a topic's segment.bytes must be at least
    ),
    _bytes(
        "transaction.state.log.load.buffer.size",
        5242880,
        "Bytes read at a time while transactional ids are loaded.",
        1,
    ),
    _int(
        "transaction.max.timeout.ms",
        900000,
        "Longest timeout that a producer may have for its transactions.",
        1,
        unit="ms",
    ),
    _int(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10000,
        "How often transactions that timed out are aborted.",
        1,
        unit="ms",
    ),
    _int(
        "transactional.id.expiration.ms",
        604800000,
        "How long a transactional id without an open transaction is remembered.",
        1,
        unit="ms",
    ),
    _int(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3600000,
        "How often expired transactional ids are removed.",
        1,
        unit="ms",
    ),
    # groups
    _int("offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets.", 1),
    _number(
        Type.SHORT,
        "offsets.topic.replication.factor",
        3,
        "Replicas of __consumer_offsets; it is not made while fewer brokers are registered.",
        1,
    ),
    _bytes(
        "offsets.topic.segment.bytes",
        104857600,
        "Size at which a segment of __consumer_offsets rolls.",
        1048576,  # what a topic's segment.bytes must be at least
    ),
    _int(
        "offsets.commit.timeout.ms",
        5000,
        "Longest wait until an offset commit is replicated.",
        1,
        unit="ms",
    ),
    _bytes("offsets.load.buffer.size", 5242880, "Bytes read at a time while groups are loaded.", 1),
    _int(
        "offset.metadata.max.bytes",
        4096,
        "Longest metadata of a committed offset.",
        0,
        unit="bytes",
    ),
    _int(
        "offsets.retention.minutes",
        10080,
        "Time for which the offsets of an empty group are kept.",
        1,
        unit="min",
    ),
    _ms(
        "offsets.retention.check.interval.ms",
        600000,
        "Time between checks for expired offsets.",
        1,
    ),
    _int(
        "group.min.session.timeout.ms",
        6000,
        "Shortest session timeout that a member may request.",
        1,
        unit="ms",
    ),
    _int(
        "group.max.session.timeout.ms",
        1800000,
        "Longest session timeout that a member may request.",
        1,
        unit="ms",
    ),
    _int(
        "group.initial.rebalance.delay.ms",
        3000,
        "Wait for more members before a new group's first assignment.",
        0,
        unit="ms",
    ),
    _int("group.max.size", INT_MAX, "Members of one group.", 1),
    _list(
        "group.coordinator.rebalance.protocols",
        ("classic", "consumer", "streams"),
        "Protocols of groups that are served.",
        choices=("classic", "consumer", "share", "streams"),
    ),
    *_consumer_group_rows(),
    *_share_group_rows(),
    *_share_partition_rows(),
    *_streams_group_rows(),
)

LIVE_BROKER_SETTINGS = frozenset(name for name, row in BROKER_SETTINGS.items() if row.live)
PER_BROKER_SETTINGS = frozenset({"listeners", "listener.security.protocol.map"})
"""Live for one broker, not for all."""
OPEN_LISTENER_SETTINGS = frozenset(row.name for row in _tls_rows() if row.live)
"""Change on a listener that is open."""
NEW_LISTENER_SETTINGS = frozenset({"sasl.enabled.mechanisms", "sasl.jaas.config"})
"""Are set before a listener is opened."""
LISTENER_SETTINGS = OPEN_LISTENER_SETTINGS | NEW_LISTENER_SETTINGS
"""Live as `listener.name.NAME.x` only."""
"""Those that change while a broker runs only for one listener, as `listener.name.NAME.x`."""


def _topic(row: Setting, *broker: tuple[str, int]) -> Setting:
    fields = {name: getattr(row, name) for name in Setting.__slots__}
    return Setting(**(fields | {"broker": tuple(broker), "live": True}))


TOPIC_SETTINGS: dict[str, Setting] = _table(
    _topic(
        _bytes("segment.bytes", 1073741824, "Size at which a segment rolls.", 1048576),
        ("log.segment.bytes", 1),
    ),
    _topic(
        _ms("segment.ms", 604800000, "Age at which a segment rolls.", 1),
        ("log.roll.ms", 1),
        ("log.roll.hours", _HOUR_MS),
    ),
    _topic(
        _ms("segment.jitter.ms", 0, "Random part subtracted from segment.ms.", 0),
        ("log.roll.jitter.ms", 1),
        ("log.roll.jitter.hours", _HOUR_MS),
    ),
    _topic(
        _bytes("segment.index.bytes", 10485760, "Size of an index at which its segment rolls.", 4),
        ("log.index.size.max.bytes", 1),
    ),
    _topic(
        _long("flush.messages", LONG_MAX, "Records after which the log is synced.", 1),
        ("log.flush.interval.messages", 1),
    ),
    _topic(
        _ms("flush.ms", LONG_MAX, "Time after which the log is synced.", 0),
        ("log.flush.interval.ms", 1),
        ("log.flush.scheduler.interval.ms", 1),
    ),
    _topic(
        _long(
            "retention.bytes",
            -1,
            "Size above which the oldest segments are deleted; -1: no limit.",
            unit="bytes",
        ),
        ("log.retention.bytes", 1),
    ),
    _topic(
        _ms("retention.ms", 604800000, "Age at which records may be deleted; -1 never.", -1),
        ("log.retention.ms", 1),
        ("log.retention.minutes", _MINUTE_MS),
        ("log.retention.hours", _HOUR_MS),
    ),
    _topic(
        _bytes("max.message.bytes", 1048588, "Largest record batch, compressed.", 0),
        ("message.max.bytes", 1),
    ),
    _topic(
        _bytes("index.interval.bytes", 4096, "Record bytes between two entries of an index.", 0),
        ("log.index.interval.bytes", 1),
    ),
    _topic(
        _ms("delete.retention.ms", 86400000, "Time for which tombstones are kept.", 0),
        ("log.cleaner.delete.retention.ms", 1),
    ),
    _topic(
        _ms("min.compaction.lag.ms", 0, "Age below which a record is not compacted.", 0),
        ("log.cleaner.min.compaction.lag.ms", 1),
    ),
    _topic(
        _ms("max.compaction.lag.ms", LONG_MAX, "Age above which a record must be compacted.", 1),
        ("log.cleaner.max.compaction.lag.ms", 1),
    ),
    _topic(
        _ms(
            "file.delete.delay.ms",
            60000,
            "Time before the files of a removed segment are deleted.",
            0,
        ),
        ("log.segment.delete.delay.ms", 1),
    ),
    _topic(
        Setting(
            "min.cleanable.dirty.ratio",
            Type.DOUBLE,
            0.5,
            "Share that must be dirty to be compacted.",
            low=0.0,
            high=1.0,
        ),
        ("log.cleaner.min.cleanable.ratio", 1),
    ),
    _topic(
        _list(
            "cleanup.policy",
            ("delete",),
            "What happens to old segments.",
            choices=("compact", "delete"),
        ),
        ("log.cleanup.policy", 1),
    ),
    _topic(
        _flag(
            "unclean.leader.election.enable",
            False,
            "Allow a leader from outside the ISR; acknowledged records may be lost.",
        ),
        ("unclean.leader.election.enable", 1),
    ),
    _topic(
        _int(
            "min.insync.replicas",
            1,
            "Replicas that must be in sync for a produce with acks=all.",
            1,
        ),
        ("min.insync.replicas", 1),
    ),
    _topic(
        _text("compression.type", "producer", "Codec of the log.", choices=_CODECS),
        ("compression.type", 1),
    ),
    _topic(
        _int("compression.gzip.level", -1, "Level of gzip.", 1, high=9, extra=-1),
        ("compression.gzip.level", 1),
    ),
    _topic(
        _int("compression.lz4.level", 9, "Level of lz4.", 1, high=17), ("compression.lz4.level", 1)
    ),
    _topic(
        _int("compression.zstd.level", 3, "Level of zstd.", -131072, high=22),
        ("compression.zstd.level", 1),
    ),
    _topic(
        _flag("preallocate", False, "Allocate the disk space of a new segment at once."),
        ("log.preallocate", 1),
    ),
    _topic(
        _text(
            "message.timestamp.type",
            "CreateTime",
            "Timestamp of a record: the producer's, or the time of the append.",
            choices=("CreateTime", "LogAppendTime"),
        ),
        ("log.message.timestamp.type", 1),
    ),
    _topic(
        _ms(
            "message.timestamp.before.max.ms",
            LONG_MAX,
            "How far in the past a record's time may lie.",
            0,
        ),
        ("log.message.timestamp.before.max.ms", 1),
    ),
    _topic(
        _ms(
            "message.timestamp.after.max.ms",
            3600000,
            "How far in the future a record's time may lie.",
            0,
        ),
        ("log.message.timestamp.after.max.ms", 1),
    ),
    _topic(_flag("remote.storage.enable", False, "Keep old segments elsewhere: not served.")),
    _topic(_flag("remote.log.copy.disable", False, "Without effect: no tiered storage.")),
    _topic(_flag("remote.log.delete.on.disable", False, "Without effect: no tiered storage.")),
    _topic(
        _ms("local.retention.ms", -2, "Without effect: no tiered storage.", -2),
        ("log.local.retention.ms", 1),
    ),
    _topic(
        _long("local.retention.bytes", -2, "Without effect: no tiered storage.", -2, unit="bytes"),
        ("log.local.retention.bytes", 1),
    ),
    _topic(
        _text(
            "replog.mirror.source",
            "",
            "Set by replog mirror: the cluster and topic whose copy this is; no producer may "
            "write to it.",
        )
    ),
    _topic(
        _list(
            "leader.replication.throttled.replicas",
            (),
            "Replicas throttled where they are sent from: partition:broker,... of the leaders, "
            "or * for all.",
        )
    ),
    _topic(
        _list(
            "follower.replication.throttled.replicas",
            (),
            "Replicas throttled where they are fetched: partition:broker,... of the followers, "
            "or * for all.",
        )
    ),
    _bytes(
        "internal.segment.bytes",
        None,
        "Segment size below the smallest segment.bytes, for tests.",
        14,
        internal=True,
        live=True,
    ),
)


TIME_DIFFERENCE, MESSAGE_FORMAT, _DOWN_CONVERSION = (
    "message.timestamp.difference.max.ms",
    "message.format.version",
    "message.downconversion.enable",
)
_OLD_ROWS: tuple[Setting, ...] = (
    _ms(
        TIME_DIFFERENCE,
        LONG_MAX,
        "How far off a record's time may lie, where before and after are not set.",
        0,
        live=True,
    ),
    _text(MESSAGE_FORMAT, "3.0-IV1", "Without effect: a leader appends batches of magic 2."),
    _flag(
        _DOWN_CONVERSION,
        True,
        "Convert records for clients of Fetch 0 to 3; false: UNSUPPORTED_VERSION.",
        live=True,
    ),
)
_SMALLEST_SEGMENT_39 = 14  # a message of magic 0 without key and value
BROKER_SETTINGS_39: dict[str, Setting] = BROKER_SETTINGS | _table(
    replace(BROKER_SETTINGS["log.segment.bytes"], low=_SMALLEST_SEGMENT_39),
    replace(BROKER_SETTINGS["log.message.timestamp.after.max.ms"], default=LONG_MAX),
    replace(
        BROKER_SETTINGS["authorizer.class.name"],
        choices=("", "kafka.security.authorizer.AclAuthorizer"),
    ),
    *(replace(row, name=f"log.{row.name}") for row in _OLD_ROWS),
)
"""Those of a member of a ZooKeeper cluster, whose brokers are Kafka 3.9."""
TOPIC_SETTINGS_39: dict[str, Setting] = TOPIC_SETTINGS | _table(
    replace(TOPIC_SETTINGS["segment.bytes"], low=_SMALLEST_SEGMENT_39),
    replace(TOPIC_SETTINGS["message.timestamp.after.max.ms"], default=LONG_MAX),
    *(_topic(row, (f"log.{row.name}", 1)) for row in _OLD_ROWS),
)

TIERED_SETTINGS = frozenset(
    {
        "local.retention.bytes",
        "local.retention.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
    }
)
"""Stored and described; tiered storage itself is not served, and is off at every Kafka broker that
does not say otherwise.
"""

THROTTLED_REPLICAS = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)
"""Topic settings that are no log's: `replication.replication_quota` obeys them."""

SAMPLE_VALUES: Mapping[str, str] = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""What a start without `--config` says, on top of the rows' defaults: Kafka's sample file, and
no delay before a lone broker's first group. Several brokers differ (`start_checks.read_values`).
"""

REFUSED: Mapping[str, str] = {
    "config.providers": ("values are never loaded from another place; write the value itself"),
}

LISTENER_PREFIX = "listener.name."
_OF_SASL_LISTENERS = frozenset(
    {"connections.max.reauth.ms", "connection.failed.authentication.delay.ms"}
)


def setting_row(name: str) -> Setting:
    """The row of a setting that is obeyed, or that Kafka knows. Raises KeyError."""
    return BROKER_SETTINGS.get(name) or known_broker_settings()[name]


def override_row(name: str) -> Setting | None:
    """The row whose value `listener.name.NAME.x` or `listener.name.NAME.MECHANISM.x` gives; None
    where it is no such name.
    """
    if not name.startswith(LISTENER_PREFIX):
        return None
    listener, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
    if not listener or listener != listener.lower():
        return None
    for each in (setting, setting.partition(".")[2]):
        found = BROKER_SETTINGS.get(each) or known_broker_settings().get(each)
        if found is not None:
            return found
    return None


def may_change(name: str, row: Setting) -> bool:
    """Whether the setting `name`, which has this row, may change while the broker runs: of a
    listener also what it must have before it is opened.
    """
    of_sasl = row.name.startswith("sasl.") or row.name in _OF_SASL_LISTENERS
    return row.live or (name.startswith(LISTENER_PREFIX) and of_sasl)


def is_secret(name: str) -> bool:
    """Whether a broker's setting, or a listener's own, holds a password or a key, or may: a name
    that no table has (a plugin's, a misspelt one) counts as one. Such a value is never shown.
    """
    row = override_row(name) or BROKER_SETTINGS_39.get(name) or known_broker_settings().get(name)
    return row is None or row.type is Type.PASSWORD
