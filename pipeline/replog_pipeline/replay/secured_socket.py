"""TLS and SASL of our own blocking connections, by the properties of a Java client.

1. What a property asks for is done or refused in one line that names it: no certificate, host name
   or proof of the broker is left unchecked unless `ssl.endpoint.identification.algorithm` is empty,
   which turns off the host name as in Kafka.
2. A refusal that stays (certificate, password) is a PipelineError; a broken connection is an
   OSError as ever, and the caller tries again.
3. No error holds a password or a key.

Source: Kafka's `SslConfigs`, `SaslConfigs`, KIP-651; the mechanisms are the broker's own
(`twisted_broker.security.sasl`). Not here: a token of OAUTHBEARER (`bearer_token`), GSSAPI,
re-authentication (a broker ends a session that is over; the caller connects again).
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import ClientConfig
from replog_pipeline.replay import bearer_token
from twisted_broker.installed import install
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.jaas import OAUTHBEARER, PLAIN, SCRAM, JaasError, parse_jaas
from twisted_broker.security.sasl.plain import PlainClient
from twisted_broker.security.sasl.scram import MECHANISMS, NONCE_BYTES, ScramClient

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
STORES = ("PEM", "PKCS12", "JKS")
MODULES = {"PLAIN": PLAIN, bearer_token.MECHANISM: OAUTHBEARER} | dict.fromkeys(MECHANISMS, SCRAM)


class Mechanism(Protocol):
    """One authentication, the client's side."""

    name: str
    complete: bool

    def first(self) -> bytes: ...
    def respond(self, token: bytes) -> bytes | None: ...


def protocol(client: ClientConfig) -> str:
    """Raises PipelineError for one that there is none of."""
    name = client.get("security.protocol", "PLAINTEXT").upper()
    if name not in PROTOCOLS:
        raise PipelineError(f"security.protocol: {name!r} is none of {', '.join(PROTOCOLS)}")
    return name


def opened(host: str, port: int, client: ClientConfig, timeout_seconds: float) -> socket.socket:
    """A connection over which requests can go, but for SASL. Raises OSError, PipelineError."""
    speaks_tls = protocol(client).endswith("SSL")
    context = tls_context(client) if speaks_tls else None
    plain = socket.create_connection((host, port), timeout_seconds)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLEOFError:
        plain.close()
        raise ConnectionError(
            "the other side ended the TLS handshake: is it a port for TLS (security.protocol)?"
        ) from None
    except ssl.SSLError as error:
        plain.close()
        raise PipelineError(f"{host}:{port}: {explained(error)}") from None
    except OSError:
        plain.close()
        raise


def explained(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the broker's certificate is not accepted ({error.verify_message}): see "
            "ssl.truststore.location and ssl.endpoint.identification.algorithm"
        )
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "this port does not speak TLS: see security.protocol"
    return f"the TLS handshake failed ({error.reason or error}): see ssl.keystore.location"


def tls_context(client: ClientConfig) -> ssl.SSLContext:
    """Raises PipelineError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(client.get("ssl.endpoint.identification.algorithm", "https"))
    enabled = [
        name.strip() for name in client.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")
    ]
    unknown = [name for name in enabled if name not in VERSIONS]
    if unknown:
        raise PipelineError(
            f"ssl.enabled.protocols: {unknown[0]!r} is none of {', '.join(VERSIONS)}"
        )
    versions = sorted(VERSIONS[name] for name in enabled)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    trust(context, client)
    identify(context, client)
    return context


def trust(context: ssl.SSLContext, client: ClientConfig) -> None:
    """Whose certificates are accepted; the system's authorities without a trust store."""
    inline, path = client.get("ssl.truststore.certificates"), client.get("ssl.truststore.location")
    if inline:
        load("ssl.truststore.certificates", lambda: context.load_verify_locations(cadata=inline))
    elif not path:
        context.load_default_certs()
    elif store_type(client, "truststore") == "PEM":
        load(f"ssl.truststore.location {path}", lambda: context.load_verify_locations(cafile=path))
    else:
        with stores("ssl.truststore.location", path) as (key_store, encoding, data):
            found = key_store.trusted_certificates(
                data,
                client.get("ssl.truststore.password") or None,
                f"ssl.truststore.location {path}",
            )
            pem = b"".join(each.public_bytes(encoding.Encoding.PEM) for each in found)
        context.load_verify_locations(cadata=pem.decode())


def identify(context: ssl.SSLContext, client: ClientConfig) -> None:
    """Our own certificate, where there is one."""
    chain, key = client.get("ssl.keystore.certificate.chain"), client.get("ssl.keystore.key")
    path, password = client.get("ssl.keystore.location"), client.get("ssl.key.password")
    if chain and key:
        with private_file(f"{key}\n{chain}\n".encode()) as file:
            load(
                "ssl.keystore.key", lambda: context.load_cert_chain(file, password=lambda: password)
            )
    elif not path:
        return
    elif store_type(client, "keystore") == "PEM":
        name = f"ssl.keystore.location {path}"
        load(name, lambda: context.load_cert_chain(path, password=lambda: password))
    else:
        of_store = client.get("ssl.keystore.password")
        with stores("ssl.keystore.location", path) as (key_store, encoding, data):
            name = f"ssl.keystore.location {path}"
            entry = key_store.key_entry(data, of_store or None, password or of_store or None, name)
            pem = entry.key.private_bytes(
                encoding.Encoding.PEM, encoding.PrivateFormat.PKCS8, encoding.NoEncryption()
            ) + b"".join(each.public_bytes(encoding.Encoding.PEM) for each in entry.chain)
        with private_file(pem) as file:
            load(name, lambda: context.load_cert_chain(file))


def store_type(client: ClientConfig, which: str) -> str:
    name = client.get(f"ssl.{which}.type", "JKS").upper()
    if name not in STORES:
        raise PipelineError(f"ssl.{which}.type: {name!r} is none of {', '.join(STORES)}")
    return name


def load(name: str, action: Callable[[], None]) -> None:
    try:
        action()
    except ssl.SSLError as error:
        raise PipelineError(f"{name} cannot be used: {error.reason or error}") from None
    except OSError as error:
        raise PipelineError(f"{name}: {error.strerror or error}") from None


@contextmanager
def stores(setting: str, path: str) -> Iterator[tuple[Any, Any, bytes]]:
    """(the reader of PKCS12 and JKS, the library's encodings, the store's bytes)."""
    try:
        from cryptography.hazmat.primitives import serialization

        from twisted_broker.security import key_store
    except ModuleNotFoundError as error:
        raise PipelineError(
            f"{setting} {path}: {error.name} is not installed, which reads PKCS12 and JKS: "
            f"{install('tls')}, or set the store's type to PEM"
        ) from None
    try:
        yield key_store, serialization, Path(path).read_bytes()
    except key_store.StoreError as error:
        raise PipelineError(str(error)) from None
    except OSError as error:
        raise PipelineError(f"{setting} {path}: {error.strerror or error}") from None


@contextmanager
def private_file(content: bytes) -> Iterator[str]:
    """For OpenSSL, which takes a key from a file only; nobody else may read it, and it goes."""
    descriptor, path = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        yield path
    finally:
        os.unlink(path)


def mechanism(client: ClientConfig) -> Mechanism | None:
    """None without SASL. Raises PipelineError."""
    if not protocol(client).startswith("SASL"):
        return None
    name = client.get("sasl.mechanism", "GSSAPI").upper()
    if name not in MODULES:
        raise PipelineError(
            f"sasl.mechanism: {name} is not known to the pipeline's own connections; known are "
            f"{', '.join(MODULES)}"
        )
    try:
        login = parse_jaas(client.get("sasl.jaas.config"))
    except JaasError as error:
        raise PipelineError(f"sasl.jaas.config: it must have {error}") from None
    if login.module != MODULES[name]:
        raise PipelineError(f"sasl.jaas.config: {name} wants {MODULES[name]}, not {login.module}")
    if name == bearer_token.MECHANISM:
        return bearer_token.client(client, login.options, tls_context)
    user, password = login.options.get("username"), login.options.get("password")
    if user is None or password is None:
        raise PipelineError('sasl.jaas.config: username="..." password="..." are missing')
    if name == "PLAIN":
        return PlainClient(user, password)
    return ScramClient(MECHANISMS[name], user, password, secrets.token_urlsafe(NONCE_BYTES))


def authenticate(which: Mechanism, send: Callable[[bytes], bytes]) -> None:
    """`send` sends a message and returns the broker's. Raises PipelineError."""
    token: bytes | None = which.first()
    try:
        while token is not None:
            token = which.respond(send(token))
    except SaslFailure as error:
        raise PipelineError(f"SASL authentication failed: {error}") from None
    if not which.complete:
        raise PipelineError("SASL authentication failed: the broker ended it too early")
