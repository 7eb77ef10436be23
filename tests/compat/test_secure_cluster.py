"""Three brokers and a controller with SASL_SSL, SCRAM and ACLs, under load: certificates, a
password and a process change, and nobody notices.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from cryptography.x509 import load_der_x509_certificate

from tests.compat.broker_process import BrokerProcess
from tests.compat.test_sasl import (
    PASSWORD,
    PATIENCE,
    SECRET,
    SHA_256,
    SecureCluster,
    in_sync,
    set_user,
    until,
)
from twisted_broker.cli.tls import make_certificates

pytestmark = [pytest.mark.clients, pytest.mark.long]
ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
SPREAD_SECONDS = 5.0
"""So late at most a broker obeys an ACL that the controller acknowledged."""


class GuardedCluster(SecureCluster):
    """With an authorizer on each node; `admin` is a super user."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.controller.settings |= ACLS

    def new_broker(self, node_id: int, name: str = "") -> BrokerProcess:
        made = super().new_broker(node_id, name)
        made.settings |= ACLS
        # Who changes a password does not end what is open.
        del made.settings["listener.name.clients.scram-sha-256.connections.max.reauth.ms"]
        return made

    def serial_shown(self, bootstrap: str) -> int:
        """Of the certificate that a new client is shown."""
        context = ssl.create_default_context(cafile=str(self.directory / "tls/ca.pem"))
        host, _, port = bootstrap.rpartition(":")
        with (
            socket.create_connection((host, int(port)), PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
            assert shown is not None
            return load_der_x509_certificate(shown).serial_number

    def nodes(self) -> dict[str, str]:
        """The address of each node by its directory's name."""
        found = {each.directory.name: each.bootstrap for each in self.brokers.values()}
        return found | {"controller": self.controller.bootstrap}


class Load:
    """One producer and one group, in threads of their own."""

    def __init__(self, cluster: GuardedCluster) -> None:
        settings = cluster.client("alice", SECRET)
        self.producer = Producer(settings | {"enable.idempotence": True, "linger.ms": "0"})
        self.consumer = Consumer(settings | {"group.id": "g", "auto.offset.reset": "earliest"})
        self.sent = 0
        self.outcomes: list[KafkaError | None] = []
        self.found: list[int] = []
        self.errors: list[KafkaError] = []
        self._done, self._read = Event(), Event()
        self._threads = [Thread(target=each) for each in (self._produce, self._consume)]
        for each in self._threads:
            each.start()

    def _produce(self) -> None:
        while not self._done.is_set():
            self.producer.produce(
                "t", str(self.sent), on_delivery=lambda error, _: self.outcomes.append(error)
            )
            self.sent += 1
            self.producer.poll(0.005)
        assert self.producer.flush(PATIENCE) == 0

    def _consume(self) -> None:
        self.consumer.subscribe(["t"])
        while not self._read.is_set():
            for each in self.consumer.consume(1000, 0.1):
                if each.error() is None:
                    self.found.append(int(each.value()))
                else:
                    self.errors.append(each.error())
        self.consumer.close()

    def goes_on(self) -> None:
        """Records are acknowledged and read that were not sent yet."""
        since = self.sent
        until(lambda: len(self.outcomes) > since + 20, "records are acknowledged")
        until(lambda: self.found and self.found[-1] > since + 20, "records are read")

    def end(self) -> None:
        self._done.set()
        self._threads[0].join(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while len(self.found) < self.sent and time.monotonic() < deadline:
            time.sleep(0.05)
        self.stop()

    def stop(self) -> None:
        self._done.set()
        self._read.set()
        for each in self._threads:
            each.join(PATIENCE)


def rule(
    user: str,
    operation: AclOperation,
    kind: ResourceType = ResourceType.TOPIC,
    name: str = "t",
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission
    )


def make_acls(admin: AdminClient, *rules: AclBinding) -> None:
    for each in admin.create_acls(list(rules)).values():
        each.result(PATIENCE)


def is_visible(cluster: GuardedCluster, broker: BrokerProcess, user: str, password: str) -> bool:
    """Whether this broker, and no other, shows a user the topic."""
    settings = cluster.client(user, password) | {"bootstrap.servers": broker.bootstrap}
    topic = AdminClient(settings).list_topics("t", timeout=PATIENCE).topics["t"]
    assert topic.error is None or topic.error.code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )
    return topic.error is None


def spread_seconds(cluster: GuardedCluster, admin: AdminClient, acl: AclBinding) -> float:
    """Until every broker obeys an ACL about bob."""
    wanted = acl.permission_type is AclPermissionType.ALLOW
    make_acls(admin, acl)
    since = time.monotonic()
    for broker in cluster.brokers.values():

        def obeys(broker: BrokerProcess = broker) -> bool:
            return is_visible(cluster, broker, "bob", "bob-password") is wanted

        until(obeys, f"{broker.directory.name} obeys it")
    return time.monotonic() - since


def renew_certificates(cluster: GuardedCluster, admin: AdminClient) -> None:
    """Every node's by new files, then one broker's by a setting."""
    before = {name: cluster.serial_shown(at) for name, at in cluster.nodes().items()}
    make_certificates(cluster.directory / "tls", ("127.0.0.1",), "client", 1)
    for name, at in cluster.nodes().items():

        def is_new(name: str = name, at: str = at) -> bool:
            return cluster.serial_shown(at) != before[name]

        until(is_new, f"the new certificate of {name}")
    other = cluster.directory / "other-tls"
    shutil.copytree(cluster.directory / "tls", other)
    make_certificates(other, ("127.0.0.1",), "client", 1)
    entry = ConfigEntry(
        "listener.name.clients.ssl.keystore.location",
        str(other / "broker.pem"),
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    at = cluster.brokers[1].bootstrap
    shown = cluster.serial_shown(at)
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE)
    until(lambda: cluster.serial_shown(at) != shown, "the certificate that the setting names")


def restart_leader(cluster: GuardedCluster, admin: AdminClient) -> None:
    leader = admin.list_topics("t", timeout=PATIENCE).topics["t"].partitions[0].leader
    former = cluster.brokers[leader]
    former.stop()
    former.settings["listeners"] = f"CLIENTS://{former.bootstrap}"
    former.start()
    until(lambda: in_sync(admin) == 3, "the former leader is in sync again")


def change_password(cluster: GuardedCluster, admin: AdminClient) -> None:
    """Connections that are open stay, and new ones need the new password, on every broker."""
    set_user(admin, "alice", SHA_256, f"new-{SECRET}")
    for broker in cluster.brokers.values():

        def is_known(password: str, at: str = broker.bootstrap) -> bool:
            settings = cluster.client("alice", password) | {"bootstrap.servers": at}
            failed: list[KafkaError] = []
            client = AdminClient(settings | {"error_cb": failed.append})
            with suppress(KafkaException):
                return "t" in client.list_topics(timeout=5).topics
            client.poll(1)
            assert any(each.code() == KafkaError._AUTHENTICATION for each in failed), failed
            return False

        until(partial(is_known, f"new-{SECRET}"), "the new password counts")
        assert not is_known(SECRET)


def test_nobody_notices_what_operators_change(tmp_path: Path) -> None:
    """What was acknowledged is there, once and in order; no client had an error that it could not
    get over by itself; every broker obeys an ACL soon after it was acknowledged.
    """
    cluster = GuardedCluster(tmp_path)
    load: Load | None = None
    try:
        cluster.start()
        admin = AdminClient(cluster.client("admin", PASSWORD))
        settings = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic("t", 1, 3, config=settings)])["t"].result(PATIENCE)
        set_user(admin, "alice", SHA_256, SECRET)
        set_user(admin, "bob", SHA_256, "bob-password")
        make_acls(
            admin,
            rule("alice", AclOperation.ALL),
            rule("alice", AclOperation.READ, ResourceType.GROUP, "g"),
        )
        until(lambda: in_sync(admin) == 3, "all replicas in sync")
        load = Load(cluster)
        load.goes_on()

        for broker in cluster.brokers.values():
            assert not is_visible(cluster, broker, "bob", "bob-password")
        allowed = spread_seconds(cluster, admin, rule("bob", AclOperation.READ))
        denial = rule("bob", AclOperation.ALL, permission=AclPermissionType.DENY)
        denied = spread_seconds(cluster, admin, denial)
        assert allowed < SPREAD_SECONDS and denied < SPREAD_SECONDS, (allowed, denied)

        renew_certificates(cluster, admin)
        load.goes_on()
        restart_leader(cluster, admin)
        load.goes_on()
        change_password(cluster, admin)
        load.goes_on()

        load.end()
        assert load.outcomes == [None] * load.sent
        assert load.found == list(range(load.sent))
        assert [each for each in load.errors if each.fatal() or not each.retriable()] == []
        text = "\n".join(
            each.log.read_text() for each in (cluster.controller, *cluster.brokers.values())
        )
        assert "Traceback" not in text
        assert not [each for each in (PASSWORD, SECRET) if each in text]
    except BaseException:
        print(cluster.log_tail())
        raise
    finally:
        if load is not None:
            load.stop()
        cluster.end()
