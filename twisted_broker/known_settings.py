"""Settings that Apache Kafka knows and that nothing here obeys, or not yet.

Owns their names, types, defaults and ranges: a wrong value of one stops the start and is refused by
AlterConfigs, as Kafka does, and DescribeConfigs shows them. There are those of brokers; those of
groups and of client metrics, which are stored for what will obey them; and those of a member of a
ZooKeeper cluster, which are obeyed.

1. A name is here or in the table of `config.py`, never in both.
2. The tables are parsed when one of their names is first met, not at every start.

A row: name, type, default (- none, "" empty), then as it applies the range (`low..high`) or the
choices (`a|b`), `+` where Kafka changes it while the broker runs, `#` where it is internal.

Source: Kafka 4.3.1's `AbstractKafkaConfig`, `GroupConfig`, `ClientMetricsConfigs`,
`DynamicBrokerConfig`. Not here: what a value does.
"""

from __future__ import annotations

from functools import cache

from twisted_broker.settings import Setting, Type, Value

ZOOKEEPER_CONNECT = "zookeeper.connect"
_BROKER = """
alter.config.policy.class.name class -
background.threads int 10 1.. +
broker.id int -1
client.quota.callback.class class -
config.providers list "" +
controller.performance.always.log.threshold.ms long 2000 0.. #
controller.performance.sample.period.ms long 60000 100.. #
controller.quorum.append.linger.ms int 25 0..
controller.socket.timeout.ms int 30000
create.topic.policy.class.name class -
follower.fetch.last.tiered.offset.enable boolean false +
group.coordinator.append.linger.ms int -1 -1..
group.coordinator.background.threads int 2 1..
group.coordinator.cached.buffer.max.bytes int 1048588 524288.. +
group.coordinator.threads int 4 1..
group.share.persister.class.name string org.apache.kafka.server.share.persister.DefaultStatePersister #
internal.metadata.delete.delay.millis long 60000 #
internal.metadata.log.segment.bytes int - #
internal.metadata.max.batch.size.in.bytes int 8388608 #
kafka.metrics.polling.interval.secs int 10 1..
kafka.metrics.reporters list ""
log.cleaner.io.buffer.size int 524288 0.. +
log.dir.failure.timeout.ms long 30000 1..
log.initial.task.delay.ms long 30000 0.. #
log.local.retention.bytes long -2 -2.. +
log.local.retention.ms long -2 -2.. +
metadata.log.segment.bytes int 1073741824 8388608..
metadata.log.segment.ms long 604800000
metric.reporters list org.apache.kafka.common.metrics.JmxReporter +
metrics.num.samples int 2 1..
metrics.recording.level string INFO
metrics.sample.window.ms long 30000 1..
num.io.threads int 8 1.. +
num.network.threads int 3 1.. +
num.recovery.threads.per.data.dir int 2 1.. +
offsets.topic.compression.codec int 0
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
queued.max.requests int 500 1..
remote.fetch.max.wait.ms int 500 1.. +
remote.list.offsets.request.timeout.ms long 30000 1.. +
remote.log.index.file.cache.total.size.bytes long 1073741824 1.. +
remote.log.index.file.cache.ttl.ms long 900000 -1.. #
remote.log.manager.copier.thread.pool.size int 10 1.. +
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 1.. +
remote.log.manager.copy.quota.window.num int 11 1..
remote.log.manager.copy.quota.window.size.seconds int 1 1..
remote.log.manager.expiration.thread.pool.size int 10 1.. +
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 1.. +
remote.log.manager.fetch.quota.window.num int 11 1..
remote.log.manager.fetch.quota.window.size.seconds int 1 1..
remote.log.manager.follower.thread.pool.size int 2 1.. +
remote.log.manager.task.interval.ms long 30000 1..
remote.log.manager.task.retry.backoff.max.ms long 30000 1.. #
remote.log.manager.task.retry.backoff.ms long 500 1.. #
remote.log.manager.task.retry.jitter double 0.2 0..0.5 #
remote.log.manager.thread.pool.size int 2 1..
remote.log.metadata.custom.metadata.max.bytes int 128 0..
remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path string -
remote.log.metadata.manager.impl.prefix string rlmm.config.
remote.log.metadata.manager.listener.name string -
remote.log.reader.max.pending.tasks int 100 1..
remote.log.reader.threads int 10 1.. +
remote.log.storage.manager.class.name string -
remote.log.storage.manager.class.path string -
remote.log.storage.manager.impl.prefix string rsm.config.
remote.log.storage.system.enable boolean false
replica.socket.receive.buffer.bytes int 65536
sasl.client.callback.handler.class class -
sasl.kerberos.kinit.cmd string /usr/bin/kinit +
sasl.kerberos.min.time.before.relogin long 60000 +
sasl.kerberos.principal.to.local.rules list DEFAULT +
sasl.kerberos.service.name string - +
sasl.kerberos.ticket.renew.jitter double 0.05 +
sasl.kerberos.ticket.renew.window.factor double 0.8 +
sasl.login.callback.handler.class class -
sasl.login.class class -
sasl.login.connect.timeout.ms int -
sasl.login.read.timeout.ms int -
sasl.login.refresh.buffer.seconds short 300 +
sasl.login.refresh.min.period.seconds short 60 +
sasl.login.refresh.window.factor double 0.8 +
sasl.login.refresh.window.jitter double 0.05 +
sasl.login.retry.backoff.max.ms long 10000
sasl.login.retry.backoff.ms long 100
sasl.oauthbearer.assertion.algorithm string RS256
sasl.oauthbearer.assertion.claim.aud string -
sasl.oauthbearer.assertion.claim.exp.seconds int 300 0..86400
sasl.oauthbearer.assertion.claim.iss string -
sasl.oauthbearer.assertion.claim.jti.include boolean false
sasl.oauthbearer.assertion.claim.nbf.seconds int 60 0..3600
sasl.oauthbearer.assertion.claim.sub string -
sasl.oauthbearer.assertion.file string -
sasl.oauthbearer.assertion.private.key.file string -
sasl.oauthbearer.assertion.private.key.passphrase password -
sasl.oauthbearer.assertion.template.file string -
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope.claim.name string scope
sasl.server.callback.handler.class class -
security.providers string -
server.max.startup.time.ms long 9223372036854775807 0.. #
share.coordinator.append.linger.ms int -1 -1..
share.coordinator.cached.buffer.max.bytes int 1048588 524288.. +
share.coordinator.state.topic.compression.codec int 0
share.coordinator.threads int 1 1..
socket.connection.setup.timeout.max.ms long 30000
socket.connection.setup.timeout.ms long 10000
ssl.engine.factory.class class -
ssl.keymanager.algorithm string SunX509 +
ssl.provider string - +
ssl.secure.random.implementation string - +
ssl.trustmanager.algorithm string PKIX +
transaction.two.phase.commit.enable boolean false
unclean.leader.election.interval.ms long 300000 1.. #
unstable.api.versions.enable boolean false #
unstable.feature.versions.enable boolean false #
"""

_GROUP = """
consumer.assignment.interval.ms int 1000 0..
consumer.heartbeat.interval.ms int 5000 1..
consumer.session.timeout.ms int 45000 1..
share.assignment.interval.ms int 1000 0..
share.auto.offset.reset string latest
share.delivery.count.limit int 5 2..
share.heartbeat.interval.ms int 5000 1..
share.isolation.level string read_uncommitted read_committed|read_uncommitted
share.partition.max.record.locks int 2000 100..
share.record.lock.duration.ms int 30000 1000..
share.renew.acknowledge.enable boolean true
share.session.timeout.ms int 45000 1..
streams.assignment.interval.ms int 1000 0..
streams.heartbeat.interval.ms int 5000 1..
streams.initial.rebalance.delay.ms int 3000 0..
streams.num.standby.replicas int 0 0..
streams.session.timeout.ms int 45000 1..
"""

_CLIENT_METRICS = """
interval.ms int 300000 100..3600000
match list ""
metrics list ""
"""

_WITHOUT_BROKERS = frozenset(
    {"share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable"}
)
"""Settings of groups whose default is no setting of the broker's."""

_ZOOKEEPER = """
zookeeper.connect string ""
zookeeper.session.timeout.ms int 18000 1..
zookeeper.connection.timeout.ms int - 1..
zookeeper.metadata.migration.enable boolean false
inter.broker.protocol.version string 3.9 3.9|3.9-IV0|2.6|2.6-IV0
controlled.shutdown.max.retries int 3 1..
controlled.shutdown.retry.backoff.ms long 5000 0..
delegation.token.master.key password -
"""
"""Of a member of a ZooKeeper cluster, as in Kafka 3.9; only where `zookeeper.connect` is set. These
are obeyed (`zookeeper_membership.py`), but for the key: such a member has no delegation tokens.
"""


@cache
def zookeeper_settings() -> dict[str, Setting]:
    """Those of a member of a ZooKeeper cluster."""
    return _parsed(_ZOOKEEPER)


@cache
def broker_settings() -> dict[str, Setting]:
    """Those of brokers."""
    return _parsed(_BROKER)


@cache
def group_settings() -> dict[str, Setting]:
    """Each names the broker's setting of the same meaning, where there is one."""
    return {
        name: row if name in _WITHOUT_BROKERS else row.behind(((f"group.{name}", 1),))
        for name, row in _parsed(_GROUP).items()
    }


@cache
def client_metrics_settings() -> dict[str, Setting]:
    """Those of a subscription of client metrics."""
    return _parsed(_CLIENT_METRICS)


def _parsed(table: str) -> dict[str, Setting]:
    rows = (_row(*line.split()) for line in table.strip().splitlines())
    return {row.name: row for row in rows}


def _row(name: str, kind: str, default: str, *more: str) -> Setting:
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    for word in more:
        if ".." in word:
            low, high = (_number(part) for part in word.split(".."))
        elif word not in ("+", "#"):
            choices = tuple(word.split("|"))
    bare = Setting(
        name,
        Type[kind.upper()],
        None,
        "Known to Apache Kafka; without effect here.",
        low=low,
        high=high,
        choices=choices,
        nullable=default == "-",
        live="+" in more,
        internal="#" in more,
    )
    return bare if default == "-" else bare.with_default(_value(bare, default))


def _number(text: str) -> float | None:
    return (float(text) if "." in text else int(text)) if text else None


def _value(row: Setting, default: str) -> Value:
    return row.parse("" if default == '""' else default)
