"""`replog tls make`: what a trial needs, renewed by a second run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.x509 import ExtendedKeyUsage, ObjectIdentifier, load_pem_x509_certificate
from cryptography.x509.oid import ExtendedKeyUsageOID

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.cli.main import main
from twisted_broker.log.filesystem import OsFileSystem
from twisted_broker.net.listener_security import check_tls
from twisted_broker.net.listeners import plan_listeners
from twisted_broker.security.key_store import alternative_names
from twisted_broker.settings import parse_properties


def run(*arguments: str) -> list[str]:
    result = CliRunner().invoke(main, ["tls", "make", *arguments])
    assert result.exit_code == 0, result.output
    return [Path(line).name for line in result.output.splitlines()]


def test_a_broker_accepts_what_is_written(tmp_path: Path) -> None:
    run(str(tmp_path / "d"))
    config = BrokerConfig(parse_properties((tmp_path / "d" / "broker.properties").read_text()))
    check_tls(config, plan_listeners(config), OsFileSystem())
    assert not config.unknown() and not config.without_effect()
    # The defaults of a file, 3 and 2, leave a lone broker without groups and transactions.
    assert config.integer("offsets.topic.replication.factor") == 1
    assert config.integer("transaction.state.log.replication.factor") == 1
    assert config.integer("transaction.state.log.min.isr") == 1


def test_a_second_run_keeps_the_authority(tmp_path: Path) -> None:
    directory = str(tmp_path)
    certificates = ["broker.pem", "client.pem", "broker.properties", "client.properties"]
    assert run(directory) == ["ca.key", "ca.pem", *certificates]
    authority, before = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "broker.pem").read_bytes()
    assert run(directory, "--host", "a.example", "--host", "10.0.0.7", "--client", "bob") == (
        certificates
    )
    assert (tmp_path / "ca.pem").read_bytes() == authority
    after = (tmp_path / "broker.pem").read_bytes()
    assert after != before
    assert alternative_names(load_pem_x509_certificate(after)) == {"a.example", "10.0.0.7"}
    client = load_pem_x509_certificate((tmp_path / "client.pem").read_bytes())
    assert client.subject.rfc4514_string() == "CN=bob"
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    ("file", "usage"),
    [
        ("broker.pem", [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        ("client.pem", [ExtendedKeyUsageOID.CLIENT_AUTH]),
    ],
)
def test_a_clients_certificate_is_no_servers(
    tmp_path: Path, file: str, usage: list[ObjectIdentifier]
) -> None:
    """Who has it cannot play a broker to other clients; a broker is a client of the others."""
    run(str(tmp_path))
    made = load_pem_x509_certificate((tmp_path / file).read_bytes())
    assert list(made.extensions.get_extension_for_class(ExtendedKeyUsage).value) == usage


def test_each_authority_has_a_name_of_its_own(tmp_path: Path) -> None:
    """Java and OpenSSL look an authority up by its name: of two alike in a trust store one hides
    the other.
    """
    found = set()
    for name in ("one", "two"):
        run(str(tmp_path / name))
        pem = (tmp_path / name / "ca.pem").read_bytes()
        found.add(load_pem_x509_certificate(pem).subject.rfc4514_string())
    assert len(found) == 2 and all(each.startswith("CN=replog trial auth") for each in found)


def test_what_cannot_be_written_or_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "ca.key").write_text("nothing")
    (tmp_path / "ca.pem").write_text("nothing")
    result = CliRunner().invoke(main, ["tls", "make", str(tmp_path)])
    assert result.exit_code == 2
    assert result.output.startswith(f"replog tls make: {tmp_path}: ")
    assert len(result.output.splitlines()) == 1
