"""Keys, trust and protocol versions of TLS, as the settings of a listener give them.

Owns the contexts from which connections are made, and their renewal.

1. Settings that cannot work are refused when the broker starts, in one line that names the setting
   and the remedy: no key, a wrong password, client certificates without anybody to trust.
2. New connections use new files and settings; those that are open keep theirs. What cannot be used
   changes nothing: one line, and the ones of before stay until the files change again.
3. A key store is replaced only by one of the same subject and at least the same names, unless
   `ssl.allow.dn.changes` and `ssl.allow.san.changes` allow it.
4. No renegotiation, no compression, no resumption: who is trusted no more does not come back on an
   old session.
5. With SASL_SSL, `ssl.client.auth` counts only where the listener has it as its own (KIP-684).

Ring 2. Source: Kafka's `DefaultSslEngineFactory`, `SslFactory`, `SslConfigs`. Not here: the bytes
of a store (`security/key_store.py`), connections (`net/tls_protocol.py`).
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cryptography import x509
from OpenSSL import SSL
from OpenSSL.crypto import X509
from twisted.logger import Logger

from twisted_broker.broker_config import BrokerConfig, ListenerConfig
from twisted_broker.interfaces import IFileSystem
from twisted_broker.net.connection import one_line
from twisted_broker.security.cipher_suites import openssl_names
from twisted_broker.security.key_store import (
    KeyEntry,
    StoreError,
    alternative_names,
    key_entry,
    pem_certificates,
    pem_key_entry,
    subject_of,
    trusted_certificates,
)
from twisted_broker.security.principal_mapping import MAPPING_RULES, PrincipalMapper
from twisted_broker.security.security_protocol import SecurityProtocol
from twisted_broker.settings import ConfigError

_logger = Logger(namespace="replog.tls")

_VERSIONS = {"TLSv1.2": SSL.TLS1_2_VERSION, "TLSv1.3": SSL.TLS1_3_VERSION}
_FILES = ("ssl.keystore.location", "ssl.truststore.location")
_SETTINGS = (
    *_FILES,
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.keystore.type",
    MAPPING_RULES,
    "ssl.protocol",
    "ssl.truststore.certificates",
    "ssl.truststore.password",
    "ssl.truststore.type",
)
_OLDER_SUITES = b"ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20"
"""Of TLS 1.2: those that authenticate what they encrypt (no CBC), with forward secrecy."""
_PARTIAL_WRITES = 0x1
"""OpenSSL's SSL_MODE_ENABLE_PARTIAL_WRITE, which pyOpenSSL sets and has no name for."""
T = TypeVar("T")
_TYPES = ("JKS", "PKCS12", "PEM")
_MOST_BYTES = 16 << 20
"""Of a store: what is larger is none."""


class _Made(NamedTuple):
    """What the settings and files of one moment give. `own`: the key's certificate."""

    context: SSL.Context
    own: x509.Certificate | None
    mapper: PrincipalMapper


class TlsSettings:
    """Of one listener, or of the connections to it. Raises ConfigError."""

    def __init__(
        self,
        config: ListenerConfig,
        files: IFileSystem,
        protocol: SecurityProtocol,
        is_server: bool,
    ) -> None:
        self._config, self._files = config, files
        self._protocol, self._is_server = protocol, is_server
        self._seen = self._fingerprint()
        self._made = self._make()

    @property
    def listener(self) -> str:
        return self._config.name

    @property
    def context(self) -> SSL.Context:
        """The newest."""
        return self._made.context

    @property
    def mapper(self) -> PrincipalMapper:
        """The newest."""
        return self._made.mapper

    @property
    def gives_principals(self) -> bool:
        """Whether a client's certificate says who it is; else SASL does."""
        return not self._protocol.uses_sasl

    @property
    def verifies_host(self) -> bool:
        """Whether the other side's certificate must be for the name by which it was called."""
        return bool(self._config.text("ssl.endpoint.identification.algorithm"))

    def refresh(self) -> None:
        """Takes what settings and files are now, if they changed."""
        seen = self._fingerprint()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            made = self._make()
            self._check_same(made)
        except ConfigError as error:
            _logger.warn(
                "{whose}: keys and certificates stay as they were: {error}",
                whose=self._config.whose,
                error=error,
            )
            return
        self._made = made
        _logger.info(
            "{whose}: new keys and certificates{until}",
            whose=self._config.whose,
            until="" if made.own is None else f", valid until {made.own.not_valid_after_utc}",
        )

    def check(self, config: BrokerConfig) -> None:
        """Whether a refresh under `config` would take what is there then. Raises ConfigError."""
        wanted = TlsSettings(
            config.listener_config(self.listener), self._files, self._protocol, self._is_server
        )
        self._check_same(wanted._made)

    def _fingerprint(self) -> tuple[Any, ...]:
        values = tuple(self._config[name] for name in _SETTINGS)
        return values, tuple(map(self._file_state, _FILES))

    def _file_state(self, setting: str) -> tuple[int, int] | None:
        path = self._path(setting)
        try:
            return None if path is None else (self._files.modified_ms(path), self._files.size(path))
        except OSError:
            return None

    def _path(self, setting: str) -> str | None:
        path = self._config.text(setting)
        return posixpath.abspath(path) if path else None

    # building

    def _make(self) -> _Made:
        entry = self._own_key()
        if entry is None and self._is_server:
            raise ConfigError(
                "ssl.keystore.location",
                "",
                f"a key store, because listener {self.listener} speaks TLS; for a trial: "
                "replog tls make DIR",
            )
        context = SSL.Context(SSL.TLS_SERVER_METHOD if self._is_server else SSL.TLS_CLIENT_METHOD)
        context.set_options(
            SSL.OP_NO_COMPRESSION
            | SSL.OP_NO_RENEGOTIATION
            | SSL.OP_NO_TICKET
            | SSL.OP_CIPHER_SERVER_PREFERENCE
        )
        context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
        context.set_mode(SSL.MODE_RELEASE_BUFFERS)
        # Into memory all is written anyway: with it, each record would be a call of its own.
        context.clear_mode(_PARTIAL_WRITES)
        self._set_versions(context)
        self._set_ciphers(context)
        if entry is not None:
            self._use(context, entry)
        self._set_trust(context)
        mapper = PrincipalMapper(self._config.text(MAPPING_RULES) or "")
        return _Made(context, None if entry is None else entry.chain[0], mapper)

    def _use(self, context: SSL.Context, entry: KeyEntry) -> None:
        key: Any = entry.key
        try:
            context.use_certificate(entry.chain[0])
            for each in entry.chain[1:]:
                context.add_extra_chain_cert(each)
            context.use_privatekey(key)
        except (SSL.Error, TypeError, ValueError) as error:
            raise ConfigError(
                "ssl.keystore.location",
                self._config.text("ssl.keystore.location"),
                f"a key that TLS can use: {error_words(error)}",
            ) from None

    def _set_versions(self, context: SSL.Context) -> None:
        names = self._config.names("ssl.enabled.protocols")
        newest = self._config.text("ssl.protocol") or "TLSv1.3"
        for name in (*names, newest):
            if name not in _VERSIONS:
                setting = "ssl.enabled.protocols" if name in names else "ssl.protocol"
                raise ConfigError(setting, name, f"any of {', '.join(_VERSIONS)}")
        # As in Java, the client's newest version is `ssl.protocol`.
        found = [each for each in names if self._is_server or each <= newest]
        if not found:
            raise ConfigError("ssl.enabled.protocols", ",".join(names), f"at least one of {newest}")
        context.set_min_proto_version(_VERSIONS[min(found)])
        context.set_max_proto_version(_VERSIONS[max(found)])

    def _set_ciphers(self, context: SSL.Context) -> None:
        suites = self._config.names("ssl.cipher.suites")
        if not suites:
            context.set_cipher_list(_OLDER_SUITES)
            return
        older, latest = openssl_names(suites)
        enabled = self._config.names("ssl.enabled.protocols")
        try:
            if older:
                context.set_cipher_list(":".join(older).encode())
            if latest:
                context.set_tls13_ciphersuites(":".join(latest).encode())
        except SSL.Error as error:
            raise ConfigError(
                "ssl.cipher.suites", ",".join(suites), f"what OpenSSL has: {error_words(error)}"
            ) from None
        # A version without a suite of its own would serve all of its suites.
        if not latest and "TLSv1.3" in enabled:
            context.set_max_proto_version(SSL.TLS1_2_VERSION)
        if not older and "TLSv1.2" in enabled:
            context.set_min_proto_version(SSL.TLS1_3_VERSION)

    def _set_trust(self, context: SSL.Context) -> None:
        trusted = self._trusted()
        mode = SSL.VERIFY_PEER
        if self._is_server:
            wanted = self._client_auth()
            if wanted == "none":
                return
            if trusted is None:
                raise ConfigError(
                    "ssl.truststore.location",
                    "",
                    f"the certificates of whoever signs those of clients, because listener "
                    f"{self.listener} has ssl.client.auth={wanted}",
                )
            if wanted == "required":
                mode |= SSL.VERIFY_FAIL_IF_NO_PEER_CERT
        context.set_verify(mode, _verified)
        if trusted is None:
            context.set_default_verify_paths()
            return
        store = context.get_cert_store()
        for each in trusted:
            if store is not None:
                store.add_cert(X509.from_cryptography(each))
            if self._is_server:
                context.add_client_ca(each)

    def _client_auth(self) -> str:
        if self._protocol.uses_sasl and not self._config.overrides("ssl.client.auth"):
            return "none"
        return self._config.text("ssl.client.auth") or "none"

    def _check_same(self, made: _Made) -> None:
        """A key store of somebody else by mistake would lock all clients out."""
        before, after = self._made.own, made.own
        if before is None or after is None:
            return
        if before.subject != after.subject and not self._config.boolean("ssl.allow.dn.changes"):
            raise ConfigError(
                "ssl.keystore.location",
                self._config.text("ssl.keystore.location"),
                f"the subject of before, {subject_of(before)}, not {subject_of(after)}; allow "
                "others with ssl.allow.dn.changes=true",
            )
        missing = alternative_names(before) - alternative_names(after)
        if missing and not self._config.boolean("ssl.allow.san.changes"):
            raise ConfigError(
                "ssl.keystore.location",
                self._config.text("ssl.keystore.location"),
                f"a certificate also for {', '.join(sorted(missing))}, as before; allow others "
                "with ssl.allow.san.changes=true",
            )

    # stores

    def _own_key(self) -> KeyEntry | None:
        text = self._config.text
        location, kind = text("ssl.keystore.location"), self._type("ssl.keystore.type")
        key, chain = text("ssl.keystore.key"), text("ssl.keystore.certificate.chain")
        password = text("ssl.key.password")
        if key or chain:
            self._check_inline("ssl.keystore.key", kind, location, "ssl.keystore")
            if not (key and chain):
                missing = "ssl.keystore.key" if chain else "ssl.keystore.certificate.chain"
                raise ConfigError(missing, "", "PEM: the key and its certificates come together")
            return self._read(
                "ssl.keystore.key",
                None,
                lambda _: pem_key_entry(
                    key.encode(),
                    chain.encode(),
                    password,
                    "ssl.keystore.key",
                    "ssl.keystore.certificate.chain",
                ),
            )
        if not location:
            return None
        name = f"ssl.keystore.location ({location})"
        if kind == "PEM":
            self._check_no_password("ssl.keystore.password", "use ssl.key.password for the key")
            return self._read(
                "ssl.keystore.location",
                location,
                lambda data: pem_key_entry(data, data, password, name, name),
            )
        return self._read(
            "ssl.keystore.location",
            location,
            lambda data: key_entry(data, text("ssl.keystore.password"), password, name),
        )

    def _trusted(self) -> list[x509.Certificate] | None:
        text = self._config.text
        location, kind = text("ssl.truststore.location"), self._type("ssl.truststore.type")
        inline = text("ssl.truststore.certificates")
        if inline:
            self._check_inline("ssl.truststore.certificates", kind, location, "ssl.truststore")
            return self._read(
                "ssl.truststore.certificates",
                None,
                lambda _: pem_certificates(inline.encode(), "ssl.truststore.certificates"),
            )
        if not location:
            return None
        name = f"ssl.truststore.location ({location})"
        if kind == "PEM":
            self._check_no_password("ssl.truststore.password", "certificates in PEM have none")
            return self._read(
                "ssl.truststore.location", location, partial(pem_certificates, name=name)
            )
        password = text("ssl.truststore.password")
        return self._read(
            "ssl.truststore.location",
            location,
            partial(trusted_certificates, password=password, name=name),
        )

    def _type(self, setting: str) -> str:
        kind = (self._config.text(setting) or "").upper()
        if kind not in _TYPES:
            raise ConfigError(setting, kind, f"one of {', '.join(_TYPES)}")
        return kind

    def _check_inline(self, setting: str, kind: str, location: str | None, prefix: str) -> None:
        if kind != "PEM":
            raise ConfigError(f"{prefix}.type", kind, f"PEM where {setting} is set")
        if location:
            raise ConfigError(
                f"{prefix}.location", location, f"no value where {setting} is set: remove one"
            )
        self._check_no_password(f"{prefix}.password", "PEM has none")

    def _check_no_password(self, setting: str, why: str) -> None:
        if self._config.text(setting) is not None:
            raise ConfigError(setting, "[hidden]", f"no value with PEM: {why}")

    def _read(self, setting: str, location: str | None, parse: Callable[[bytes], T]) -> T:
        """Raises ConfigError, which names the file and never what is in it."""
        try:
            data = b""
            if location is not None:
                data = self._bytes(posixpath.abspath(location))
            return parse(data)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(setting, location, "", f"it cannot be read: {reason}") from None
        except (StoreError, ValueError) as error:
            hidden = "[hidden]" if location is None else location
            raise ConfigError(setting, hidden, "", str(error)) from None

    def _bytes(self, path: str) -> bytes:
        if self._files.exists(path) and not self._files.is_file(path):
            # To open a FIFO would hold the reactor until somebody writes it.
            raise StoreError("it is no regular file: name one")
        file = self._files.open(path, read_only=True)
        try:
            size = file.size()
            if size > _MOST_BYTES:
                raise StoreError(f"{path} is no store: it has {size} bytes")
            return file.read_at(0, size)
        finally:
            file.close()


def _verified(
    connection: SSL.Connection, certificate: Any, error: int, depth: int, good: int
) -> bool:
    """OpenSSL's own result; the first error is noted for the line that is logged."""
    noted = connection.get_app_data()
    if not good and isinstance(noted, list) and not noted:
        noted.append(
            f"{_VERIFY_ERRORS.get(error, f'error {error} of OpenSSL')} ({_shown(certificate)})"
        )
    return bool(good)


def _shown(certificate: Any) -> str:
    """Whose certificate it is, as one short line: the peer chose what is in it."""
    try:
        found = certificate.to_cryptography()
        subject, until = subject_of(found), found.not_valid_after_utc
    except Exception:  # of what OpenSSL passed and cryptography does not: of any type
        return UNREADABLE
    return f"{one_line(subject[:_MOST_SUBJECT])}, valid until {until:%Y-%m-%d %H:%M} UTC"


UNREADABLE = "it cannot be read"
"""a certificate that OpenSSL parses and cryptography does not"""
_MOST_SUBJECT = 200


_VERIFY_ERRORS = {
    9: "it is not valid yet: compare the clocks",
    10: "it has expired: renew it",
    18: "it is signed by itself, and not in the trust store",
    19: "its authority is not in the trust store",
    20: "its authority is not in the trust store",
    21: "its authority is not in the trust store",
    23: "it was revoked",
    26: "it may not be used for this (extended key usage)",
}


def error_words(error: BaseException) -> str:
    """What OpenSSL says, as one line."""
    if isinstance(error, SSL.SysCallError):
        return "the connection was closed"
    if isinstance(error, SSL.Error) and error.args and isinstance(error.args[0], list):
        return "; ".join(dict.fromkeys(part[-1] for part in error.args[0])) or "a TLS error"
    return " ".join(str(error).split())[:200] or type(error).__name__
