"""`replog tls`: an authority and certificates for a trial of TLS.

1. What is made is for trials: the authority's key lies beside the certificates, without a password.
2. A second run in the same directory keeps the authority and renews the certificates: brokers that
   run take them without a restart.
3. Keys are readable by their owner only, and a file is there as a whole or not at all.

Source: RFC 5280; KIP-651 (PEM in Kafka). Not here: how a broker uses them (`net/tls_context.py`).
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import click

from twisted_broker.cli.number_types import WholeNumber
from twisted_broker.installed import install

_DAYS = 365
_HOSTS = ("localhost", "127.0.0.1", "::1")
_LINES = """\
# Made by replog tls make. Start the broker: twistd -n replog --config {directory}/broker.properties
listeners=SSL://localhost:9093,CONTROLLER://localhost:9094
listener.security.protocol.map=SSL:SSL,CONTROLLER:SSL
inter.broker.listener.name=SSL
ssl.keystore.type=PEM
ssl.keystore.location={directory}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={directory}/ca.pem
ssl.client.auth=requested
# One broker: the internal topics of coordinators cannot have the three replicas of the
# defaults.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
_CLIENT_LINES = """\
# Made by replog tls make, for Java's clients and tools.
security.protocol=SSL
ssl.truststore.type=PEM
ssl.truststore.location={directory}/ca.pem
ssl.keystore.type=PEM
ssl.keystore.location={directory}/client.pem
"""


@click.group()
def tls() -> None:
    """Certificates for a trial of TLS."""


@tls.command("make")
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Name or address of a broker; may be given several times. [default: this machine]",
)
@click.option("--client", default="client", show_default=True, help="Name of the client.")
@click.option(
    "--days",
    type=WholeNumber(1, 3650),
    default=_DAYS,
    show_default=True,
    help="How long they are valid.",
)
def make(directory: Path, hosts: tuple[str, ...], client: str, days: int) -> None:
    """Write an authority, a broker's and a client's certificate into DIR, with settings for both.

    A second run renews the certificates and keeps the authority.
    """
    try:
        written = make_certificates(
            directory, hosts or (*_HOSTS, socket.gethostname()), client, days
        )
    except ImportError:
        raise click.ClickException(f"cryptography is not installed: {install('tls')}") from None
    except (OSError, ValueError) as error:
        click.echo(f"replog tls make: {directory}: {error}", err=True)
        sys.exit(2)
    for path in written:
        click.echo(str(path))


def make_certificates(
    directory: Path,
    hosts: tuple[str, ...] = _HOSTS,
    client: str = "client",
    days: int = _DAYS,
    now: datetime | None = None,
) -> list[Path]:
    """The files that were written. Raises OSError, ValueError (an authority that is none).

    `now`: from when on they are valid, for tests.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    directory, started = directory.absolute(), now or datetime.now(UTC)
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def write(name: str, data: bytes, mode: int = 0o644) -> None:
        path = directory / name
        unfinished = directory / f"{name}.tmp"
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
        unfinished.replace(path)
        written.append(path)

    def pem(key: ec.EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def builder(name: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(started - timedelta(minutes=5))
            .not_valid_after(started + timedelta(days=days))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )

    authority_file, key_file = directory / "ca.pem", directory / "ca.key"
    if authority_file.exists() and key_file.exists():
        authority = x509.load_pem_x509_certificate(authority_file.read_bytes())
        loaded = load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ValueError("ca.key was not made by this command: name an empty directory")
        authority_key = loaded
    else:
        authority_key = ec.generate_private_key(ec.SECP256R1())
        # Each has a name of its own: with several in one trust store a certificate's authority is
        # looked up by its name.
        text = f"replog trial authority {secrets.token_hex(4)}"
        authority = (
            builder(text, authority_key, 3650)
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
            .add_extension(_key_usage(x509, signs_certificates=True), True)
            .sign(authority_key, SHA256())
        )
        write("ca.key", pem(authority_key), 0o600)
        write("ca.pem", authority.public_bytes(Encoding.PEM))

    server, own_client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH

    def certificate(
        name: str,
        alternative: list[x509.GeneralName],
        file: str,
        usage: list[x509.ObjectIdentifier],
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        made = (
            builder(name, key, days)
            .issuer_name(authority.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(_key_usage(x509, signs_certificates=False), True)
            .add_extension(x509.ExtendedKeyUsage(usage), False)
            .add_extension(identifier, False)
        )
        if alternative:
            made = made.add_extension(x509.SubjectAlternativeName(alternative), False)
        signed = made.sign(authority_key, SHA256())
        chain = signed.public_bytes(Encoding.PEM) + authority.public_bytes(Encoding.PEM)
        write(file, pem(key) + chain, 0o600)

    names = [_alternative(x509, host) for host in dict.fromkeys(hosts)]
    # A broker is a client of the others. With a client's certificate nobody may play a broker.
    certificate("broker", names, "broker.pem", [server, own_client])
    certificate(client, [], "client.pem", [own_client])
    write("broker.properties", _LINES.format(directory=directory).encode())
    write("client.properties", _CLIENT_LINES.format(directory=directory).encode())
    return written


def _alternative(x509, host: str):  # type: ignore[no-untyped-def]
    """A name that a certificate is for."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(x509, signs_certificates: bool):  # type: ignore[no-untyped-def]
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
