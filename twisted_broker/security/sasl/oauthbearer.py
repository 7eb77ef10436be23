"""OAUTHBEARER (RFC 7628): a token instead of a password, verified by the keys of who issued it.

Owns the broker's side, `JwtValidator` and the reading of keys (JWKS).

1. A token without a signature, by a symmetric algorithm, or by a key that is not known, is refused;
   so is every token while there are no keys (CVE-2026-110985: fail closed).
2. A token must say when it was issued and when it expires, and whose it is; audience and issuer
   where they are set. Times are compared with the time that is given, with a tolerance.
3. The authorization id is empty or the token's own name.
4. No error holds the token or its claims.
5. A stranger's token is taken apart for a few keys only, some two milliseconds each at its longest:
   `MOST_CHARACTERS`, and `MOST_TRIED` where it does not say whose it is.

Source: RFC 7628, 7515, 7517; Kafka's `OAuthBearerSaslServer`, `BrokerJwtValidator`. PyJWT verifies
the signatures (extra `oauth`). Not here: where keys come from (`net/jwks.py`), our own side
(`oauth_client.py`), scopes, extensions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jwt
from jwt.exceptions import PyJWTError

from twisted_broker.security.sasl.errors import SaslFailure

MECHANISM = "OAUTHBEARER"
MOST_KEYS = 100
MOST_CHARACTERS = 65_536
"""In a token."""
MOST_TRIED = 8
"""Keys, for one token."""
_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
_OPTIONS: Any = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
}
_REFUSED = b'{"status":"invalid_token"}'


class Key(NamedTuple):
    """A public key; `algorithms`: those that it may verify."""

    key_id: str | None
    public: Any
    algorithms: tuple[str, ...]


class Token(NamedTuple):
    """What a good token says."""

    name: str
    expires_wall_ms: int


def read_keys(text: bytes | str) -> tuple[Key, ...]:
    """The public keys of a JWKS; what cannot verify a signature is left out.

    ValueError when it is no JWKS.
    """
    try:
        entries = json.loads(text)["keys"]
        if not isinstance(entries, list):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("it is no JSON object with a list of keys") from None
    found = [_key(each) for each in entries[:MOST_KEYS] if isinstance(each, dict)]
    return tuple(each for each in found if each is not None)


def _key(entry: dict[str, Any]) -> Key | None:
    algorithms = _ALGORITHMS.get(str(entry.get("kty")), ())
    if "alg" in entry:
        algorithms = tuple(each for each in algorithms if each == entry["alg"])
    if not algorithms or entry.get("use", "sig") != "sig":
        return None
    try:
        key = jwt.PyJWK(entry, algorithm=algorithms[0]).key
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
    # A private key, which does not belong there, verifies as its public one.
    public = key.public_key() if hasattr(key, "public_key") else key
    key_id = entry.get("kid")
    return Key(key_id if isinstance(key_id, str) else None, public, algorithms)


class JwtValidator:
    """`keys()`: those known now; `unknown_key()` is called when a token names another one.
    `skew_ms`: the tolerance.
    """

    def __init__(
        self,
        keys: Callable[[], Sequence[Key]],
        *,
        audience: Sequence[str] = (),
        issuer: str | None = None,
        skew_ms: int = 30_000,
        name_claim: str = "sub",
        unknown_key: Callable[[], None] = lambda: None,
    ) -> None:
        self._keys, self._unknown_key = keys, unknown_key
        self._audience, self._issuer = frozenset(audience), issuer
        self._skew_ms, self._name_claim = skew_ms, name_claim

    def validate(self, token: str, wall_ms: int) -> Token:
        """Raises SaslFailure."""
        claims = self._verified(token)
        expires, issued = (self._time(claims, name) for name in ("exp", "iat"))
        if expires is None or issued is None:
            raise SaslFailure("the token does not say when it was issued and when it expires")
        if expires + self._skew_ms <= wall_ms:
            raise SaslFailure("the token has expired")
        starts = self._time(claims, "nbf")
        if max(issued, starts or 0) - self._skew_ms > wall_ms:
            raise SaslFailure("the token is not valid yet")
        if expires < issued:
            raise SaslFailure("the token expires before it was issued")
        if self._issuer is not None and claims.get("iss") != self._issuer:
            raise SaslFailure("the token is not of sasl.oauthbearer.expected.issuer")
        given = claims.get("aud")
        audience = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        if self._audience and self._audience.isdisjoint(filter(_is_text, audience)):
            raise SaslFailure("the token is not for sasl.oauthbearer.expected.audience")
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not name.strip():
            raise SaslFailure(f"the token has no {self._name_claim}")
        return Token(name.strip(), expires)

    @staticmethod
    def _time(claims: dict[str, Any], name: str) -> int | None:
        """In ms; None where there is none."""
        value = claims.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return int(value * 1000) if 0 <= value < 1e11 else None

    def _verified(self, token: str) -> dict[str, Any]:
        if len(token) > MOST_CHARACTERS:
            raise SaslFailure(f"the token has more than {MOST_CHARACTERS} characters")
        try:
            header = jwt.get_unverified_header(token)
        except (PyJWTError, ValueError, RecursionError):  # brackets, thousands deep
            raise SaslFailure("what came is no signed token") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        keys = self._keys()
        if not keys:
            self._unknown_key()
            raise SaslFailure("there are no keys to verify a token with")
        known = [each for each in keys if key_id is None or each.key_id in (None, key_id)]
        if not known:
            self._unknown_key()
            raise SaslFailure("the token is signed with a key that is not known")
        fitting = [each for each in known if algorithm in each.algorithms]
        if len(fitting) > MOST_TRIED:
            raise SaslFailure(
                f"the token fits {len(fitting)} keys, more than {MOST_TRIED}: it must name its own "
                "(kid)"
            )
        for each in fitting:
            try:
                found: dict[str, Any] = jwt.decode(
                    token, each.public, algorithms=[str(algorithm)], options=_OPTIONS
                )
                return found
            except (PyJWTError, ValueError, TypeError, RecursionError):
                continue
        raise SaslFailure("the token's signature is wrong, or of an algorithm that is not accepted")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


class OAuthServer:
    """One authentication. `wall_ms()`: the calendar."""

    name = MECHANISM
    token_authenticated = False

    def __init__(self, validator: JwtValidator, wall_ms: Callable[[], int]) -> None:
        self._validator, self._wall_ms = validator, wall_ms
        self._failure: SaslFailure | None = None
        self.complete = False
        self.authorization_id = ""
        self.expires_wall_ms: int | None = None

    @property
    def refused(self) -> str:
        """Why the token was refused; empty before and without that."""
        return "" if self._failure is None else str(self._failure)

    def respond(self, token: bytes) -> bytes:
        """Raises SaslFailure. A refusal is answered first, then the client's next message fails,
        as RFC 7628 has it.
        """
        if self.complete:
            raise SaslFailure("a message after the last one")
        if self._failure is not None:
            raise self._failure
        authorization_id, text = _first_message(token)
        try:
            found = self._validator.validate(text, self._wall_ms())
        except SaslFailure as failure:
            self._failure = SaslFailure(str(failure), _REFUSED.decode())
            return _REFUSED
        if authorization_id and authorization_id != found.name:
            raise SaslFailure(
                f"user {found.name!r} wants to act for {authorization_id!r}",
                "Authentication failed: the authorization id is not the token's name",
            )
        self.complete, self.authorization_id = True, found.name
        self.expires_wall_ms = found.expires_wall_ms
        return b""


def _first_message(message: bytes) -> tuple[str, str]:
    """(authorization id, token). Raises SaslFailure."""
    try:
        text = str(message, "utf-8")
    except UnicodeDecodeError:
        raise SaslFailure("the message is not UTF-8") from None
    header, _, rest = text.partition("\x01")
    flag, _, authorization_id = header.partition(",")
    if flag != "n" or authorization_id[-1:] != "," or text[-2:] != "\x01\x01":
        raise SaslFailure("the first message is malformed")
    authorization_id = authorization_id[:-1]
    if authorization_id and not authorization_id.startswith("a="):
        raise SaslFailure("the first message is malformed")
    pairs = dict(each.partition("=")[::2] for each in rest.split("\x01") if each)
    scheme, _, token = pairs.get("auth", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise SaslFailure("the first message has no bearer token")
    return authorization_id[2:].replace("=2C", ",").replace("=3D", "="), token.strip()
