"""OAUTHBEARER (RFC 7628), our side: a token that somebody else gave.

1. It is over when the broker says so: a refusal is a message of its own, which must be answered
   before the broker's error comes.

Source: RFC 7628; Kafka's `OAuthBearerSaslClient`. Not here: where a token comes from
(`security/client_security.py`), the broker's side (`oauthbearer.py`, which needs a library).
"""

from __future__ import annotations

from twisted_broker.security.sasl.errors import SaslFailure

MECHANISM = "OAUTHBEARER"
_SEPARATOR = "\x01"


class OAuthClient:
    """One authentication with `token`. Raises SaslFailure for a text that is no token."""

    name = MECHANISM

    def __init__(self, token: str) -> None:
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise SaslFailure("the token is empty, or has characters that no token has")
        parts = ("n,,", f"auth=Bearer {token}", "", "")
        self._first = _SEPARATOR.join(parts).encode()
        self.complete = False

    def first(self) -> bytes:
        """The first message."""
        return self._first

    def respond(self, token: bytes) -> bytes | None:
        """None: there is nothing more to send."""
        if token:
            return _SEPARATOR.encode()
        self.complete = True
        return None
