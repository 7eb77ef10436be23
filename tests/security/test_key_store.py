"""Stores in each form give the same key and certificates; what cannot be read is one line."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from tests.security import certificates
from twisted_broker.security.key_store import (
    StoreError,
    alternative_names,
    key_entry,
    pem_certificates,
    pem_key_entry,
    subject_of,
    trusted_certificates,
)

PASSWORD = "of the store"  # noqa: S105  a test's


@pytest.fixture
def jks() -> ModuleType:
    """Of the extra `jks`, which needs a C compiler."""
    return pytest.importorskip("jks", reason="pyjks is not installed (extra jks)")


@pytest.fixture(scope="module")
def pem() -> bytes:
    return (certificates.made() / "broker.pem").read_bytes()


@pytest.fixture(scope="module")
def entry(pem: bytes):
    return pem_key_entry(pem, pem, None, "key", "chain")


def secret(entry) -> bytes:
    return entry.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())


def ders(found) -> list[bytes]:
    return [each.public_bytes(Encoding.DER) for each in found]


def test_pem_in_lines_and_in_one_line(pem: bytes, entry) -> None:
    own, authority = (subject_of(each) for each in entry.chain)
    assert own == "CN=broker" and authority.startswith("CN=replog trial authority ")
    assert alternative_names(entry.chain[0]) == {"127.0.0.1", "localhost"}
    joined = pem.replace(b"\n", b" ")
    assert secret(pem_key_entry(joined, joined, None, "key", "chain")) == secret(entry)
    assert ders(pem_certificates(joined, "chain")) == ders(entry.chain)


def test_an_encrypted_key_in_pem(pem: bytes, entry) -> None:
    encrypted = entry.key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"of the key")
    )
    found = pem_key_entry(encrypted, pem, "of the key", "key", "chain")
    assert secret(found) == secret(entry)
    for password, words in (
        (None, "is encrypted: set ssl.key.password"),
        ("wrong", "ssl.key.password right"),
    ):
        with pytest.raises(StoreError, match=words):
            pem_key_entry(encrypted, pem, password, "key", "chain")
    with pytest.raises(StoreError, match=r"has none: remove ssl\.key\.password"):
        pem_key_entry(pem, pem, "needless", "key", "chain")


def test_a_chain_is_put_in_order_and_needs_the_keys_certificate(pem: bytes, entry) -> None:
    backwards = b"".join(each.public_bytes(Encoding.PEM) for each in reversed(entry.chain))
    assert ders(pem_key_entry(pem, backwards, None, "key", "chain").chain) == ders(entry.chain)
    other = (certificates.made("second") / "broker.pem").read_bytes()
    with pytest.raises(StoreError, match="chain has no certificate of its private key"):
        pem_key_entry(pem, other, None, "key", "chain")


@pytest.mark.parametrize("own_password", [False, True])
def test_pkcs12_and_jks_are_told_apart_by_their_bytes(
    jks: ModuleType, entry, own_password: bool
) -> None:
    p12 = pkcs12.serialize_key_and_certificates(
        b"name",
        entry.key,
        entry.chain[0],
        list(entry.chain[1:]),
        BestAvailableEncryption(PASSWORD.encode()),
    )
    assert secret(key_entry(p12, PASSWORD, None, "f")) == secret(entry)
    assert ders(key_entry(p12, PASSWORD, None, "f").chain) == ders(entry.chain)
    java = jks.PrivateKeyEntry.new("name", ders(entry.chain), secret(entry), "pkcs8")
    if own_password:
        java.encrypt("own")
    store = jks.KeyStore.new("jks", [java]).saves(PASSWORD)
    found = key_entry(store, PASSWORD, "own" if own_password else None, "f")
    assert secret(found) == secret(entry) and ders(found.chain) == ders(entry.chain)
    for data in (p12, store):
        with pytest.raises(StoreError, match=r"^f cannot be read .*ssl\.keystore\.password right"):
            key_entry(data, "wrong", None, "f")


def test_trusted_certificates_of_each_form(jks: ModuleType, entry) -> None:
    authority = entry.chain[1]
    p12 = pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(authority, b"ca")], BestAvailableEncryption(PASSWORD.encode())
    )
    java = jks.TrustedCertEntry.new("ca", ders([authority])[0])
    for data in (p12, jks.KeyStore.new("jks", [java]).saves(PASSWORD)):
        assert ders(trusted_certificates(data, PASSWORD, "f")) == ders([authority])
        with pytest.raises(StoreError, match=r"ssl\.truststore\.password right"):
            trusted_certificates(data, "wrong", "f")
    empty = jks.KeyStore.new("jks", []).saves(PASSWORD)
    with pytest.raises(StoreError, match="f has no trusted certificate"):
        trusted_certificates(empty, PASSWORD, "f")
    with pytest.raises(StoreError, match="f has no private key"):
        key_entry(empty, PASSWORD, None, "f")


@pytest.mark.parametrize(
    "data", [b"", b"\xfe\xed\xfe\xed", b"\xfe\xed\xfe\xed" + bytes(40), b"0\x82", b"garbage"]
)
def test_what_is_no_store_is_one_line(data: bytes) -> None:
    for read in (key_entry, trusted_certificates):
        arguments = (PASSWORD, None, "f") if read is key_entry else (PASSWORD, "f")
        with pytest.raises(StoreError, match=r"^f ") as caught:
            read(data, *arguments)
        assert "\n" not in str(caught.value) and PASSWORD not in str(caught.value)
    with pytest.raises(StoreError, match="f has no certificate in PEM"):
        pem_certificates(data, "f")
    with pytest.raises(StoreError, match="f has no private key in PEM"):
        pem_key_entry(data, data, None, "f", "f")


@pytest.mark.parametrize("read", [key_entry, trusted_certificates])
def test_a_jks_store_without_the_extra_names_it(read, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the command, and the way without a compiler."""
    monkeypatch.setitem(sys.modules, "jks", None)
    arguments = (PASSWORD, None) if read is key_entry else (PASSWORD,)
    with pytest.raises(StoreError, match=r"^f is a JKS .*\[jks\].* C compiler.* PKCS12") as caught:
        read(b"\xfe\xed\xfe\xed" + bytes(40), *arguments, "f")
    assert "\n" not in str(caught.value)


def test_a_flipped_bit_of_a_store_is_one_line(jks: ModuleType, entry) -> None:
    store = jks.KeyStore.new(
        "jks", [jks.PrivateKeyEntry.new("name", ders(entry.chain), secret(entry), "pkcs8")]
    ).saves(PASSWORD)
    for position in range(0, len(store), 7):
        damaged = bytearray(store)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(StoreError):
            key_entry(bytes(damaged), PASSWORD, None, "f")


def test_an_attribute_without_a_short_name_is_written_as_java_writes_it() -> None:
    name = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(x509.NameOID.EMAIL_ADDRESS, "a@b.c"),
        ]
    )

    class Certificate:
        subject = name

    assert subject_of(Certificate()) == "1.2.840.113549.1.9.1=#160561406 22e63,C=DE".replace(
        " ", ""
    )


def test_made_files_are_for_their_owner_only() -> None:
    directory: Path = certificates.made()
    modes = {path.name: path.stat().st_mode & 0o77 for path in directory.iterdir()}
    assert modes["ca.key"] == modes["broker.pem"] == modes["client.pem"] == 0
    assert load_pem_private_key((directory / "ca.key").read_bytes(), None)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["PRIVATE KEY", "CERTIFICATE"])
def test_many_beginnings_without_an_end_are_read_once(kind: str) -> None:
    """Read to the end from each beginning they would take minutes."""
    data = f"-----BEGIN {kind}-----\n".encode() * 25_000
    with pytest.raises(StoreError, match=kind):
        pem_key_entry(data, data, None, "key", "chain") if kind[0] == "P" else pem_certificates(
            data, "chain"
        )
