"""PLAIN (RFC 4616): a name and a password in one message.

1. The authorization id is empty or the name itself (CVE-2017-12610): nobody acts for another.
2. Passwords are compared in constant time, also where there is no such user.

Source: RFC 4616; Kafka's `PlainSaslServer`, `PlainLoginModule` (users are `user_NAME="password"`
options of its JAAS line). Not here: where the users come from (`jaas.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from hmac import compare_digest

from twisted_broker.security.sasl.errors import SaslFailure

MECHANISM = "PLAIN"
_WRONG = "Authentication failed: wrong user name or password"


class PlainServer:
    """One authentication. `users`: passwords by name."""

    name = MECHANISM
    expires_wall_ms: int | None = None
    token_authenticated = False
    refused = ""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self.complete = False
        self.authorization_id = ""

    def respond(self, token: bytes) -> bytes:
        """Raises SaslFailure."""
        if self.complete:
            raise SaslFailure("a message after the last one")
        parts = token.split(b"\0")
        if len(parts) != 3:
            raise SaslFailure("the message is not AUTHZID NUL NAME NUL PASSWORD")
        try:
            authorization_id, name, password = (str(part, "utf-8") for part in parts)
        except UnicodeDecodeError:
            raise SaslFailure("the message is not UTF-8") from None
        if not name or not password:
            raise SaslFailure("the name or the password is empty")
        expected = self._users.get(name)
        # Compared in any case: the time must not say whether there is such a user.
        given = password.encode()
        same = compare_digest(given if expected is None else expected.encode(), given)
        if expected is None or not same:
            reason = "there is no such user" if expected is None else "the password is wrong"
            raise SaslFailure(f"user {name!r}: {reason}", _WRONG)
        if authorization_id and authorization_id != name:
            raise SaslFailure(
                f"user {name!r} wants to act for {authorization_id!r}",
                "Authentication failed: the authorization id is not the user name",
            )
        self.complete, self.authorization_id = True, name
        return b""


class PlainClient:
    """Our side."""

    name = MECHANISM

    def __init__(self, user: str, password: str) -> None:
        self._first = b"\0".join((b"", user.encode(), password.encode()))
        self.complete = False

    def first(self) -> bytes:
        """The first message."""
        self.complete = True
        return self._first

    def respond(self, token: bytes) -> bytes | None:
        """None: there is nothing more to send. Raises SaslFailure."""
        if token:
            raise SaslFailure("the broker answered PLAIN with a challenge")
        return None
