"""A broker of ours to fire at: three listeners, one user who may not act as a broker."""

from __future__ import annotations

from pathlib import Path

from tests.compat.broker_process import BrokerProcess
from tests.hostile.records import prepare
from tests.hostile.target import Address, Target
from twisted_broker.cli.tls import make_certificates

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SECRET = "bob-password"  # noqa: S105  a trial's
USERS = f'{JAAS} user_bob="{SECRET}";'
USER = ("PLAIN", "bob", SECRET)
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL://127.0.0.1:0,SECURE://127.0.0.1:0,"
    "CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,SECURE:SASL_SSL,"
    "CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.sasl.plain.sasl.jaas.config": USERS,
    "listener.name.secure.plain.sasl.jaas.config": USERS,
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "true",
}
LISTENERS = ("PLAINTEXT", "SASL", "SECURE")
_CLUSTER, _CLUSTER_ACTION, _ALLOW, _LITERAL = 4, 9, 3, 3


def start(directory: Path) -> BrokerProcess:
    """Serves; stop it."""
    make_certificates(directory / "tls", ("127.0.0.1",), "client", 1)
    store = {
        "listener.name.secure.ssl.keystore.type": "PEM",
        "listener.name.secure.ssl.keystore.location": str(directory / "tls/broker.pem"),
    }
    made = BrokerProcess(directory, SETTINGS | store).start()
    target = Target(address(made, "PLAINTEXT"))
    acl = {
        "resource_type": _CLUSTER,
        "resource_name": "kafka-cluster",
        "resource_pattern_type": _LITERAL,
        "principal": "User:somebody",
        "host": "*",
        "operation": _CLUSTER_ACTION,
        "permission_type": _ALLOW,
    }
    with target.logged_in() as wire:  # as somebody has it, all others do not
        answer = wire.call("CreateAcls", 3, {"creations": [acl]})
    assert not answer.results[0].error_code, answer
    prepare(target, "hostile-bystander")
    return made


def address(broker: BrokerProcess, listener: str) -> Address:
    """Of one of `LISTENERS`, with the user where it wants one."""
    brokers = broker.run()["brokers"]
    assert isinstance(brokers, dict)
    host, _, port = brokers["1"]["listeners"][listener].rpartition(":")
    authority = str(broker.directory / "tls/ca.pem") if listener == "SECURE" else ""
    return Address(host, int(port), authority, *(() if listener == "PLAINTEXT" else USER))
