"""Jobs against a broker that speaks SASL over TLS only: the connector, the admin client and our own
connections by the same properties, and what is said when they are wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jwt
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
from cryptography.x509 import load_pem_x509_certificate
from kafka import KafkaProducer

from replog_pipeline.cli import pipeline
from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs import archive, replay
from replog_pipeline.replay.bearer_token import HANDLER, HANDLERS, URL
from replog_pipeline.sources import KafkaSource, kafka_admin, parse, reachable
from replog_pipeline.sources.client_config import client_config
from tests.compat.broker_process import BrokerProcess
from tests.pipeline.replay.test_bearer_token import LOGIN, MODULE, Issuer
from twisted_broker.cli.tls import make_certificates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHA, SCRAM = "SCRAM-SHA-256", "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORD, RECORDS = "s3cret-of-the-archiver", 50


@dataclass(frozen=True)
class Secured:
    """A broker, the folder with its certificates, and what a client is told by a file."""

    broker: BrokerProcess
    folder: Path
    properties: Path
    issuer: Issuer

    @property
    def url(self) -> str:
        return f"kafka://{self.broker.bootstrap}/secured"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The topic `secured` has 50 records."""
    folder = tmp_path_factory.mktemp("secured")
    make_certificates(folder / "tls")
    key = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
    (folder / "keys.json").write_text(json.dumps({"keys": [public]}))
    jaas = f'{SCRAM} required username="archiver" password="{PASSWORD}";'
    subprocess.run(
        [
            *(sys.executable, "-m", "twisted_broker.cli.main", "format"),
            *("--data", str(folder / "data"), "--set", "node.id=1"),
            *("--add-scram", f"{SHA}=[name=archiver,password={PASSWORD}]"),
        ],
        check=True,
        capture_output=True,
    )
    broker = BrokerProcess(
        folder,
        {
            "node.id": "1",
            "listeners": "CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "CLIENTS",
            "controller.listener.names": "CONTROLLER",
            "sasl.enabled.mechanisms": f"{SHA},OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": (folder / "keys.json").as_uri(),
            "sasl.mechanism.inter.broker.protocol": SHA,
            "listener.name.clients.scram-sha-256.sasl.jaas.config": jaas,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "tls" / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "tls" / "ca.pem"),
        },
    )
    properties = folder / "client.properties"
    properties.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={SHA}\nsasl.jaas.config={jaas}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={folder / 'tls' / 'ca.pem'}\n"
    )
    now = int(time.time())
    claims = {"sub": "archiver", "iat": now, "exp": now + 3600}
    issuer = Issuer()
    token = jwt.encode(claims, key, algorithm="ES256")
    issuer.answers = [(200, json.dumps({"access_token": token, "expires_in": 3600}).encode())]
    try:
        broker.start()
        producer = KafkaProducer(
            bootstrap_servers=broker.bootstrap,
            security_protocol="SASL_SSL",
            sasl_mechanism=SHA,
            sasl_plain_username="archiver",
            sasl_plain_password=PASSWORD,
            ssl_cafile=str(folder / "tls" / "ca.pem"),
        )
        for number in range(RECORDS):
            producer.send("secured", b"%d" % number)
        producer.close()
        yield Secured(broker, folder, properties, issuer)
    finally:
        issuer.stop()
        broker.stop()


def test_there_and_back(spark: SparkSession, secured: Secured, tmp_path: Path) -> None:
    """No secret is in a plan, or in what a job leaves behind."""
    client = client_config(str(secured.properties))
    lake = tmp_path / "lake"
    done = archive.run(
        spark, archive.ArchiveConfig(secured.url, str(lake), "parquet", client=client)
    )
    assert done.rows == RECORDS
    again = replay.run(spark, replay.ReplayConfig(str(lake), f"{secured.url}-again", client=client))
    assert again.written == RECORDS
    assert not [
        path
        for path in lake.rglob("*")
        if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ]
    source = parse(secured.url, client=client)
    assert isinstance(source, KafkaSource)
    from replog_pipeline import sources

    frame = sources.read(spark, source)
    assert PASSWORD not in frame._jdf.queryExecution().toString()


def test_what_a_command_prints_has_no_secret(
    spark: SparkSession, secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JSON of one that works, the line and the traceback of one that is refused."""
    monkeypatch.setenv("REPLOG_TRACEBACK", "1")
    stranger = tmp_path / "stranger.properties"
    stranger.write_text(secured.properties.read_text().replace('"archiver"', '"stranger"'))
    for properties, status in ((secured.properties, 0), (stranger, 2)):
        told = CliRunner().invoke(
            pipeline,
            [
                *("archive", "--from", secured.url, "--to", str(tmp_path / "lake")),
                *("--format", "parquet", "--kafka-config", str(properties), "--json"),
            ],
        )
        assert told.exit_code == status, told.output
        assert PASSWORD not in told.stdout + told.stderr
        assert told.stdout if status == 0 else "Traceback" in told.stderr


def by_token(secured: Secured) -> list[str]:
    """Properties that change the mechanism."""
    options = " ".join(f'{name}="{value}"' for name, value in LOGIN.items())
    return [
        "sasl.mechanism=OAUTHBEARER",
        f"sasl.jaas.config={MODULE} required {options};",
        f"{URL}={secured.issuer.url}",
        f"{HANDLER}={HANDLERS[0]}",
    ]


def test_each_side_of_a_replay_by_its_own_properties(spark: SparkSession, secured: Secured) -> None:
    """The source by a token: the connector and the admin client. The target by a password."""
    config = replay.ReplayConfig(
        secured.url,
        f"{secured.url}-by-token",
        client=client_config(str(secured.properties)),
        source_client=client_config(str(secured.properties), by_token(secured)),
    )
    asked = len(secured.issuer.asked)
    assert replay.run(spark, config).written == RECORDS
    assert len(secured.issuer.asked) > asked
    back = replay.ReplayConfig(f"{config.to}", secured.url, client=config.reads_by)
    with pytest.raises(PipelineError, match="holds records"):
        replay.run(spark, back)


def test_a_wrong_password_in_java_is_one_line(spark: SparkSession, secured: Secured) -> None:
    text = secured.properties.read_text().replace(PASSWORD, "wrong")
    wrong = secured.folder / "wrong.properties"
    wrong.write_text(text)
    source = parse(secured.url, client=client_config(str(wrong)))
    assert isinstance(source, KafkaSource)
    with pytest.raises(PipelineError, match="Authentication failed"):
        kafka_admin.partitions(spark, source.cluster, source.topics)


def found(secured: Secured, *lines: str) -> object:
    """What our own connection finds, with some properties changed."""
    source = parse(secured.url, client=client_config(str(secured.properties), lines))
    assert isinstance(source, KafkaSource)
    return reachable.found(source)


@pytest.mark.clients
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            [f'sasl.jaas.config={SCRAM} required username="archiver" password="wrong";'],
            "SASL authentication failed: .*sasl.jaas.config",
        ),
        (["sasl.mechanism=SCRAM-SHA-512"], "the broker has no SCRAM-SHA-512; it has SCRAM-SHA-256"),
        (["sasl.mechanism=GSSAPI"], "sasl.mechanism: GSSAPI is not known"),
        (["sasl.jaas.config=x"], "sasl.jaas.config: "),
        (["sasl.mechanism=OAUTHBEARER"], "OAUTHBEARER wants .*OAuthBearerLoginModule"),
        (["ssl.truststore.location="], "the broker's certificate is not accepted"),
        (["ssl.truststore.location=/nowhere"], "/nowhere: No such file"),
        (["ssl.truststore.type=BKS"], "'BKS' is none of PEM, PKCS12, JKS"),
        (["ssl.enabled.protocols=TLSv1"], "'TLSv1' is none of"),
        (["security.protocol=TLS"], "'TLS' is none of"),
    ],
)
def test_what_is_wrong_is_one_line_before_spark_starts(
    secured: Secured, lines: list[str], message: str
) -> None:
    with pytest.raises(PipelineError, match=message) as error:
        found(secured, *lines)
    assert PASSWORD not in str(error.value)


@pytest.mark.clients
def test_a_token_of_our_own_connections(secured: Secured, tmp_path: Path) -> None:
    assert found(secured, *by_token(secured))
    file = tmp_path / "token"
    (_, answer) = secured.issuer.answers[0]
    file.write_text(json.loads(answer)["access_token"])
    assert found(secured, *by_token(secured), f"{URL}={file.as_uri()}")
    file.write_text(jwt.encode({"sub": "archiver"}, "k" * 32, algorithm="HS256"))
    with pytest.raises(PipelineError, match=f"SASL authentication failed: .*: see {URL}"):
        found(secured, *by_token(secured), f"{URL}={file.as_uri()}")


@pytest.mark.clients
def test_plain_text_on_a_port_for_tls_is_left_to_the_job(secured: Secured) -> None:
    assert found(secured, "security.protocol=PLAINTEXT") is None


@pytest.mark.clients
def test_stores_of_all_kinds(secured: Secured, tmp_path: Path) -> None:
    """The authority inline, and in PKCS12 behind a password."""
    pem = (secured.folder / "tls" / "ca.pem").read_text()
    assert found(secured, "ssl.truststore.location=", f"ssl.truststore.certificates={pem}")
    authority = load_pem_x509_certificate(pem.encode())
    store = tmp_path / "ca.p12"
    store.write_bytes(
        pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(authority, b"ca")], BestAvailableEncryption(b"changeit")
        )
    )
    of_store = [f"ssl.truststore.location={store}", "ssl.truststore.type=PKCS12"]
    assert found(secured, *of_store, "ssl.truststore.password=changeit")
    with pytest.raises(PipelineError, match=r"ssl\.truststore\.location .*ca\.p12"):
        found(secured, *of_store, "ssl.truststore.password=wrong")
