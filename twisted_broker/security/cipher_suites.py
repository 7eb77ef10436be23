"""Names of cipher suites: those of Java and the registry, as `ssl.cipher.suites` has them, as
OpenSSL's.

1. A name without a translation is refused: a suite that is silently left out could leave weak ones.

Source: RFC 5246, RFC 8446; OpenSSL's ciphers(1). Not here: which of them the library serves.
"""

from __future__ import annotations

from collections.abc import Iterable

from twisted_broker.settings import ConfigError

CIPHER_SUITES = "ssl.cipher.suites"
_LATEST = frozenset(
    {
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_AES_128_CCM_SHA256",
        "TLS_AES_128_CCM_8_SHA256",
    }
)
_EXCHANGES = {
    "ECDHE_ECDSA": "ECDHE-ECDSA-",
    "ECDHE_RSA": "ECDHE-RSA-",
    "DHE_RSA": "DHE-RSA-",
    "RSA": "",
}
_CIPHERS = {
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "AES_128_CBC_SHA": "AES128-SHA",
    "AES_256_CBC_SHA": "AES256-SHA",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
}


def openssl_names(suites: Iterable[str]) -> tuple[list[str], list[str]]:
    """(those of TLS 1.2, those of TLS 1.3). Raises ConfigError."""
    older: list[str] = []
    latest: list[str] = []
    for suite in suites:
        if suite in _LATEST:
            latest.append(suite)
            continue
        exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
        if exchange in _EXCHANGES and cipher in _CIPHERS:
            older.append(_EXCHANGES[exchange] + _CIPHERS[cipher])
        else:
            raise ConfigError(
                CIPHER_SUITES,
                suite,
                "names such as TLS_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            )
    return older, latest
