"""Jobs against Apache Kafka 4.3 with SASL_SSL, by each mechanism that they know: the connector, the
admin client and our own connections.

KAFKA_JARS: a folder of Apache Kafka 4.3's jars (`make test-java`). About a minute.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import ec

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive, audit, replay, report, sql
from replog_pipeline.jobs.sql.views import given
from replog_pipeline.kafka_cluster import ClientConfig
from replog_pipeline.replay.bearer_token import HANDLER, HANDLERS, URL
from replog_pipeline.sources import KafkaSource, parse, reachable
from replog_pipeline.sources.client_config import client_config
from tests.compat.kafka_processes import JavaNode, require
from tests.compat.test_kafka_cleaner import free_port
from tests.pipeline.replay.test_bearer_token import LOGIN, MODULE, Issuer
from twisted_broker.cli.tls import make_certificates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)
PATIENCE_SECONDS = 100
PACKAGE = "org.apache.kafka.common.security"
SCRAM = f"{PACKAGE}.scram.ScramLoginModule"
PLAIN = f"{PACKAGE}.plain.PlainLoginModule"
USER, PASSWORD = "archiver", "s3cret-of-the-archiver"
TOPIC, PARTITIONS, RECORDS = "secured", 2, 50
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


@dataclass(frozen=True)
class Java:
    """A node of Kafka's; `folder` has its certificates; `issuer` gives tokens that it takes."""

    node: JavaNode
    folder: Path
    issuer: Issuer

    @property
    def url(self) -> str:
        return f"kafka://{self.node.bootstrap}/{TOPIC}"

    def properties(self, mechanism: str, password: str = PASSWORD) -> str:
        """Of a Java client."""
        login = f'required username="{USER}" password="{password}";'
        lines = [
            "security.protocol=SASL_SSL",
            f"sasl.mechanism={mechanism}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.folder / 'tls' / 'ca.pem'}",
        ]
        if mechanism == "OAUTHBEARER":
            options = " ".join(f'{name}="{value}"' for name, value in LOGIN.items())
            lines += [
                f"sasl.jaas.config={MODULE} required {options};",
                f"{URL}={self.issuer.url}",
                f"{HANDLER}={HANDLERS[0]}",
            ]
        else:
            lines.append(f"sasl.jaas.config={PLAIN if mechanism == 'PLAIN' else SCRAM} {login}")
        return "\n".join(lines)

    def client(self, mechanism: str, password: str = PASSWORD) -> ClientConfig:
        file = self.folder / f"{mechanism}.properties"
        file.write_text(self.properties(mechanism, password))
        return client_config(str(file))


def settings(folder: Path) -> dict[str, str]:
    inside, controller = (f"127.0.0.1:{free_port()}" for _ in range(2))
    plain = f'{PLAIN} required username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";'
    listener = "listener.name.inside"
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"INSIDE://{inside},CONTROLLER://{controller}",
        "listener.security.protocol.map": "INSIDE:SASL_SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"{listener}.plain.sasl.jaas.config": plain,
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
        f"{listener}.scram-sha-512.sasl.jaas.config": f"{SCRAM} required;",
        f"{listener}.oauthbearer.sasl.jaas.config": f"{MODULE} required;",
        f"{listener}.oauthbearer.sasl.server.callback.handler.class": (
            f"{PACKAGE}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        f"{listener}.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": (
            folder / "keys.json"
        ).as_uri(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "tls" / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "tls" / "ca.pem"),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Java]:
    """The topic `secured` has 50 records."""
    require("kafka-tools")
    folder = tmp_path_factory.mktemp("java")
    make_certificates(folder / "tls")
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())) | {"kid": "1"}
    (folder / "keys.json").write_text(json.dumps({"keys": [public]}))
    issuer = Issuer()
    now = int(time.time())
    claims = {"sub": USER, "iat": now, "exp": now + 3600}
    token = jwt.encode(claims, key, algorithm="ES256", headers={"kid": "1"})
    issuer.answers = [(200, json.dumps({"access_token": token, "expires_in": 3600}).encode())]
    node = JavaNode(folder, settings(folder))
    node.bootstrap = node.bootstrap.partition(",")[0]
    made = Java(node, folder, issuer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", f"-D{ALLOWED}={(folder / 'keys.json').as_uri()}")
        node.format()
        node.spawn()
    try:
        fill(made)
        yield made
    finally:
        issuer.stop()
        node.kill()


def fill(kafka: Java) -> None:
    """When it serves: the topic, its records, and the user of SCRAM."""
    client: dict[str, Any] = {
        "bootstrap.servers": kafka.node.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(kafka.folder / "tls" / "ca.pem"),
        "log_level": 0,
    }
    admin = AdminClient(client)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        assert kafka.node.process is not None and kafka.node.process.poll() is None, (
            kafka.node.log_tail()
        )
        assert time.monotonic() < deadline, kafka.node.log_tail()
        try:
            if admin.list_topics(timeout=5).brokers:
                break
        except KafkaException:
            continue
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_SECONDS)
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wanted = UserScramCredentialUpsertion(
            USER, ScramCredentialInfo(mechanism, 8192), PASSWORD.encode()
        )
        admin.alter_user_scram_credentials([wanted])[USER].result(PATIENCE_SECONDS)
    producer = Producer(client)
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, b"k", partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_there_and_back(spark: SparkSession, kafka: Java, mechanism: str, tmp_path: Path) -> None:
    client, lake = kafka.client(mechanism), tmp_path / "lake"
    source = parse(kafka.url, client=client)
    assert isinstance(source, KafkaSource) and reachable.found(source) is not None
    config = archive.ArchiveConfig(kafka.url, str(lake), client=client, group=f"of-{mechanism}")
    assert archive.run(spark, config).rows == RECORDS
    again = replay.ReplayConfig(str(lake), f"{kafka.url}-{mechanism}", client=client)
    assert replay.run(spark, again).written == RECORDS
    assert not [
        path
        for path in lake.rglob("*")
        if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ]


def test_the_jobs_that_only_read(spark: SparkSession, kafka: Java, tmp_path: Path) -> None:
    client = kafka.client("SCRAM-SHA-512")
    source = parse(kafka.url, client=client)
    assert audit.run(spark, audit.AuditConfig(source)).findings == []
    out = io.StringIO()
    query = "select count(*) as n, count(distinct value) from secured"
    sql.run(spark, sql.SqlConfig(query, given([kafka.url], client), "csv"), out)
    assert out.getvalue().splitlines()[1] == f"{RECORDS},{RECORDS}"
    report.run(spark, report.ReportConfig(source, tmp_path / "report"))
    assert (tmp_path / "report" / "report.html").exists()


@pytest.mark.clients
@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_a_wrong_password_is_one_line_before_spark_starts(kafka: Java, mechanism: str) -> None:
    source = parse(kafka.url, client=kafka.client(mechanism, "wr0ng"))
    assert isinstance(source, KafkaSource)
    with pytest.raises(
        PipelineError, match=r"SASL authentication failed: .*sasl\.jaas\.config"
    ) as e:
        reachable.found(source)
    assert "wr0ng" not in str(e.value)
