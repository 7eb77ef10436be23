"""Key stores and trust stores: private keys and certificates out of PEM, PKCS12 and JKS.

Owns the parsing of a store's bytes, and what is read from a certificate.

1. A store that cannot be read, has no key, or whose password is wrong is refused in one line that
   names the setting and the remedy, and never holds a password or a key.
2. PKCS12 and JKS are told apart by their bytes, as by Java: either type reads both.
3. The certificate of the key comes first, then those that lead from it to its authority.

Source: Kafka's `DefaultSslEngineFactory` (`FileBasedStore`, `PemStore`), KIP-651. Not here: reading
files, TLS itself (`net/tls_context.py`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    load_der_private_key,
    load_pem_private_key,
    pkcs12,
)

from twisted_broker.installed import install
from twisted_broker.security.principal_mapping import subject_text

_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
# It ends before the next one begins: else each of many that do not end would be read to the end.
_BODY = rb"(?:(?!-----BEGIN).)+?"
_PEM_KEY = re.compile(
    rb"-----BEGIN (?P<kind>[A-Z0-9 ]*PRIVATE KEY)-----(?P<body>%b)-----END (?P=kind)-----" % _BODY,
    re.DOTALL,
)
_PEM_CERTIFICATE = re.compile(
    rb"-----BEGIN (?P<kind>(?:X509 )?CERTIFICATE)-----(?P<body>%b)-----END (?P=kind)-----" % _BODY,
    re.DOTALL,
)


class StoreError(Exception):
    """A store cannot be used; `str()` is one line, without secrets."""


class KeyEntry(NamedTuple):
    """A private key with its certificates, its own first."""

    key: PrivateKeyTypes
    chain: tuple[x509.Certificate, ...]


def pem_key_entry(
    key: bytes, certificates: bytes, password: str | None, key_name: str, chain_name: str
) -> KeyEntry:
    """`key_name`, `chain_name`: the settings that gave them. Raises StoreError."""
    match = _PEM_KEY.search(key)
    if match is None:
        raise StoreError(f"{key_name} has no private key in PEM (-----BEGIN PRIVATE KEY-----)")
    try:
        loaded = load_pem_private_key(_lines(match), password.encode() if password else None)
    except TypeError:
        wrong = "has none: remove" if password else "is encrypted: set"
        raise StoreError(f"the private key in {key_name} {wrong} ssl.key.password") from None
    except ValueError:
        raise StoreError(
            f"the private key in {key_name} cannot be read: is ssl.key.password right?"
        ) from None
    return _entry(loaded, pem_certificates(certificates, chain_name), chain_name)


def pem_certificates(data: bytes, name: str) -> list[x509.Certificate]:
    """At least one. Raises StoreError."""
    found = []
    for match in _PEM_CERTIFICATE.finditer(data):
        try:
            found.append(x509.load_pem_x509_certificate(_lines(match)))
        except ValueError as error:
            raise StoreError(f"a certificate in {name} cannot be read: {_line(error)}") from None
    if not found:
        raise StoreError(f"{name} has no certificate in PEM (-----BEGIN CERTIFICATE-----)")
    return found


def _lines(match: re.Match[bytes]) -> bytes:
    """PEM in its lines: a value in a file of properties may have spaces in their place."""
    body = match["body"]
    if b":" not in body:  # the old form of an encrypted key has headers, which keep their lines
        body = b"\n" + b"\n".join(body.split()) + b"\n"
    return b"-----BEGIN %b-----%b-----END %b-----\n" % (match["kind"], body, match["kind"])


def key_entry(
    data: bytes, store_password: str | None, key_password: str | None, name: str
) -> KeyEntry:
    """Of a PKCS12 or JKS store; `name`: the setting and its file. Raises StoreError."""
    if data[:4] in (_JKS, _JCEKS):
        return _jks_key_entry(data, store_password, key_password, name)
    bundle = _pkcs12(data, store_password, name, "ssl.keystore.password")
    if bundle.key is None:
        raise StoreError(f"{name} has no private key")
    certificates = [each.certificate for each in bundle.additional_certs]
    if bundle.cert is not None:
        certificates.insert(0, bundle.cert.certificate)
    return _entry(bundle.key, certificates, name)


def trusted_certificates(data: bytes, password: str | None, name: str) -> list[x509.Certificate]:
    """Of a PKCS12 or JKS store, at least one. Raises StoreError."""
    if data[:4] in (_JKS, _JCEKS):
        found = _jks_trusted(data, password, name)
    else:
        bundle = _pkcs12(data, password, name, "ssl.truststore.password")
        found = [each.certificate for each in bundle.additional_certs]
        if bundle.cert is not None and bundle.key is None:
            found.insert(0, bundle.cert.certificate)
    if not found:
        raise StoreError(f"{name} has no trusted certificate")
    return found


def subject_of(certificate: x509.Certificate) -> str:
    """As Java writes it."""
    return subject_text(
        [(each.oid.dotted_string, str(each.value), _encoded(each)) for each in part]
        for part in certificate.subject.rdns
    )


def alternative_names(certificate: x509.Certificate) -> frozenset[str]:
    """The names and addresses that the certificate is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    return frozenset(str(each.value) for each in found)


def _encoded(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """The value in DER: the last element of the attribute's own sequence."""
    whole = x509.Name([attribute]).public_bytes()
    body = whole
    for _ in range(3):  # the name, its only part, and that part's only attribute
        body = _contents(body)
    return body[len(body) - len(_after_first(body)) :]


def _header(data: bytes) -> tuple[int, int]:
    """(length of the header, of the contents) of the DER element that begins here."""
    if data[1] < 0x80:
        return 2, data[1]
    count = data[1] & 0x7F
    return 2 + count, int.from_bytes(data[2 : 2 + count], "big")


def _contents(data: bytes) -> bytes:
    header, length = _header(data)
    return data[header : header + length]


def _after_first(data: bytes) -> bytes:
    return data[sum(_header(data)) :]


def _pkcs12(
    data: bytes, password: str | None, name: str, setting: str
) -> pkcs12.PKCS12KeyAndCertificates:
    try:
        return pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError:
        raise StoreError(
            f"{name} cannot be read as PKCS12 or JKS: is {setting} right? For PEM set its type"
        ) from None


def _jks_key_entry(
    data: bytes, store_password: str | None, key_password: str | None, name: str
) -> KeyEntry:
    store = _jks(data, store_password, name, "ssl.keystore.password")
    for entry in store.private_keys.values():
        try:
            if not entry.is_decrypted():
                entry.decrypt(key_password or store_password or "")
            key = load_der_private_key(entry.pkey_pkcs8, None)
            certificates = [x509.load_der_x509_certificate(der) for _, der in entry.cert_chain]
        except Exception:  # as in `_jks`
            raise StoreError(
                f"the private key in {name} cannot be read: is ssl.key.password right?"
            ) from None
        return _entry(key, certificates, name)
    raise StoreError(f"{name} has no private key")


def _jks_trusted(data: bytes, password: str | None, name: str) -> list[x509.Certificate]:
    store = _jks(data, password, name, "ssl.truststore.password")
    try:
        return [x509.load_der_x509_certificate(entry.cert) for entry in store.certs.values()]
    except ValueError:
        raise StoreError(f"a certificate in {name} cannot be read") from None


def _jks(data: bytes, password: str | None, name: str, setting: str):  # type: ignore[no-untyped-def]
    try:
        import jks
    except ImportError:
        raise StoreError(
            f"{name} is a JKS store, and pyjks is not installed: {install('jks')} (it needs a C "
            "compiler), or make it a PKCS12 store with keytool -importkeystore"
        ) from None
    try:
        return jks.KeyStore.loads(data, password)
    except Exception:  # damaged bytes end in the errors of several libraries
        raise StoreError(f"{name} cannot be read as JKS: is {setting} right?") from None


def _entry(key: PrivateKeyTypes, certificates: list[x509.Certificate], name: str) -> KeyEntry:
    """The certificate of the key first: a store may have them in any order."""
    own = [each for each in certificates if each.public_key() == key.public_key()]
    if not own:
        raise StoreError(f"{name} has no certificate of its private key")
    chain = [own[0]]
    rest = [each for each in certificates if each is not own[0]]
    while len(chain) <= len(certificates):
        issuers = [each for each in rest if each.subject == chain[-1].issuer]
        if not issuers or chain[-1].subject == chain[-1].issuer:
            break
        chain.append(issuers[0])
        rest.remove(issuers[0])
    return KeyEntry(key, tuple(chain))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
