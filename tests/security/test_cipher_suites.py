"""Java's names of cipher suites are OpenSSL's; one that is not known is refused."""

from __future__ import annotations

import pytest
from OpenSSL import SSL

from twisted_broker.security.cipher_suites import _CIPHERS, _EXCHANGES, _LATEST, openssl_names
from twisted_broker.settings import ConfigError


def test_names_are_translated_by_version():
    assert openssl_names(
        [
            "TLS_AES_256_GCM_SHA384",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_RSA_WITH_AES_256_CBC_SHA256",
        ]
    ) == (
        ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305", "AES256-SHA256"],
        ["TLS_AES_256_GCM_SHA384"],
    )


@pytest.mark.parametrize("name", sorted({*_CIPHERS.values()}))
def test_openssl_knows_what_they_become(name):
    """By any of the exchanges: not every pair exists."""
    found = 0
    for prefix in _EXCHANGES.values():
        try:
            SSL.Context(SSL.TLS_METHOD).set_cipher_list((prefix + name).encode())
            found += 1
        except SSL.Error:
            continue
    assert found


def test_openssl_knows_those_of_the_latest_version():
    SSL.Context(SSL.TLS_METHOD).set_tls13_ciphersuites(":".join(sorted(_LATEST)).encode())


@pytest.mark.parametrize("name", ["", "TLS_RSA_WITH_NULL_SHA", "ECDHE-RSA-AES128-GCM-SHA256"])
def test_others_are_refused(name):
    with pytest.raises(ConfigError, match=r"ssl\.cipher\.suites"):
        openssl_names([name])
