"""OAUTHBEARER: which tokens are good, and the two messages."""

from __future__ import annotations

import contextlib
import json
from base64 import urlsafe_b64encode
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from twisted_broker.security.sasl.authenticator import API_VERSIONS, ServerAuthenticator, State
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.oauthbearer import JwtValidator, OAuthServer, read_keys
from twisted_broker.wire.errors import WireError

NOW = 1_700_000_000
RSA, OTHER = (rsa.generate_private_key(65537, 2048) for _ in range(2))
EC = ec.generate_private_key(ec.SECP256R1())
CLAIMS = {"sub": "alice", "iat": NOW - 10, "exp": NOW + 60, "aud": "kafka", "iss": "me"}


def entry(key: Any, kid: str | None = None, **more: Any) -> dict[str, Any]:
    family = jwt.algorithms.RSAAlgorithm if hasattr(key, "decrypt") else jwt.algorithms.ECAlgorithm
    found = json.loads(family.to_jwk(key.public_key()))
    return found | ({} if kid is None else {"kid": kid}) | more


def jwks(*entries: Any) -> str:
    return json.dumps({"keys": list(entries)})


KEYS = read_keys(jwks(entry(RSA, "one"), entry(EC, "two")))


def token(key: Any = RSA, kid: str | None = "one", algorithm: str = "RS256", **changes: Any) -> str:
    claims = {name: value for name, value in (CLAIMS | changes).items() if value is not None}
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims, key, algorithm=algorithm, headers=headers)


def validated(text: str, keys: Any = KEYS, **more: Any) -> Any:
    return JwtValidator(lambda: keys, **more).validate(text, NOW * 1000)


@pytest.mark.parametrize(
    "text",
    [
        token(),
        token(algorithm="RS512"),
        token(algorithm="PS256"),
        token(kid=None),
        token(EC, "two", "ES256"),
        token(exp=NOW - 29, iat=NOW - 90),
        token(nbf=NOW + 29),
    ],
)
def test_good_tokens(text: str) -> None:
    found = validated(text, audience=["other", "kafka"], issuer="me")
    assert found.name == "alice"


def test_the_token_says_when_the_session_ends() -> None:
    assert validated(token()).expires_wall_ms == (NOW + 60) * 1000


def nested(depth: int) -> str:
    header = urlsafe_b64encode(b'{"alg":' + b"[" * depth).decode()
    return f"{header}.e30.e30"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (token(OTHER), "signature"),
        (token(kid="three"), "not known"),
        (token(EC, "one", "ES256"), "signature"),
        (jwt.encode(CLAIMS, "x" * 64, algorithm="HS256", headers={"kid": "one"}), "signature"),
        (jwt.encode(CLAIMS, None, algorithm="none"), "signature"),
        (token()[:-4] + "AAAA", "signature"),
        (token().rpartition(".")[0] + ".", "signature"),
        ("", "no signed token"),
        (nested(5000), "no signed token"),
        (nested(50_000), "more than"),
        ("a.b.c", "no signed token"),
        (token(exp=NOW - 31), "expired"),
        (token(exp=None), "issued and when it expires"),
        (token(iat=None), "issued and when it expires"),
        (token(exp="soon"), "signature|expires"),
        (token(iat=NOW + 31), "not valid yet"),
        (token(nbf=NOW + 31), "not valid yet"),
        (token(exp=NOW - 20, iat=NOW - 10), "before it was issued"),
        (token(sub=None), "no sub"),
        (token(sub=" "), "no sub"),
        (token(iss="you"), "issuer"),
        (token(iss=None), "issuer"),
        (token(aud="others"), "audience"),
        (token(aud=None), "audience"),
        (token(aud=[]), "audience"),
    ],
)
def test_bad_tokens(text: str, reason: str) -> None:
    with pytest.raises(SaslFailure, match=reason) as failed:
        validated(text, audience=["kafka"], issuer="me")
    assert "alice" not in str(failed.value)


def test_a_token_that_names_no_key_is_tried_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time it is taken apart as a whole, before anybody has logged in: with a hundred keys a
    long one held others up for 0.2 s.
    """
    tried: list[Any] = []
    decode = jwt.decode

    def counted(text: str, key: Any, **more: Any) -> Any:
        tried.append(key)
        return decode(text, key, **more)

    monkeypatch.setattr(jwt, "decode", counted)
    named = read_keys(
        jwks(*(entry(OTHER, f"k{number}") for number in range(99)), entry(RSA, "one"))
    )
    assert validated(token(), named).name == "alice" and len(tried) == 1
    with pytest.raises(SaslFailure, match=r"100 keys.*kid"):
        validated(token(kid=None), named)
    with pytest.raises(SaslFailure, match=r"100 keys.*kid"):
        validated(token(), [each._replace(key_id=None) for each in named])
    assert len(tried) == 1
    # Those of another kind do not count, nor those of another name.
    mixed = read_keys(jwks(*(entry(EC) for _ in range(50)), entry(OTHER), entry(RSA)))
    assert validated(token(), mixed).name == "alice" and len(tried) == 3


def test_without_keys_nobody_comes_in() -> None:
    """CVE-2026-110985."""
    asked: list[int] = []
    for text in (token(), jwt.encode(CLAIMS, None, algorithm="none")):
        with pytest.raises(SaslFailure, match="no keys"):
            validated(text, (), unknown_key=lambda: asked.append(1))
    assert len(asked) == 2


def test_an_unknown_key_has_them_read_again() -> None:
    asked: list[int] = []
    with pytest.raises(SaslFailure):
        validated(token(kid="three"), unknown_key=lambda: asked.append(1))
    assert asked == [1]


def test_which_keys_are_read() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s"}
    found = read_keys(
        jwks(
            secret,
            entry(RSA, use="enc"),
            entry(RSA, alg="HS256"),
            {"kty": "RSA", "n": "!", "e": "AQAB"},
            {"kty": "EC"},
            "text",
            entry(RSA, "good", alg="RS256"),
        )
    )
    assert [(each.key_id, each.algorithms) for each in found] == [("good", ("RS256",))]
    with pytest.raises(SaslFailure):
        validated(token(kid=None, algorithm="RS512"), found)
    for text in ("", "[]", "{}", '{"keys": 1}', "null"):
        with pytest.raises(ValueError, match="list of keys"):
            read_keys(text)


# messages


def server() -> OAuthServer:
    return OAuthServer(JwtValidator(lambda: KEYS), lambda: NOW * 1000)


def message(text: str, header: str = "n,,") -> bytes:
    return f"{header}\x01auth=Bearer {text}\x01\x01".encode()


def test_a_good_token_is_answered_at_once() -> None:
    one = server()
    assert one.respond(message(token())) == b""
    assert one.complete and one.authorization_id == "alice"
    assert server().respond(message(token(), "n,a=alice,")) == b""
    assert server().respond(b"n,,\x01auth=Bearer " + token().encode() + b"\x01x=y\x01\x01") == b""


def test_a_client_that_goes_on_after_the_refusal_is_named_the_reason() -> None:
    """aiokafka reads the refusal as the end of a login; the log would name the API only."""
    one = ServerAuthenticator({"OAUTHBEARER": server}, {})
    one.versions_given()
    one.handshake("OAUTHBEARER", 1, 0)
    assert not one.step(message(token(exp=NOW - 100)), 0, NOW * 1000).complete
    with pytest.raises(WireError, match="the token has expired"):
        one.check(API_VERSIONS, 0)
    assert one.state is State.FAILED


def test_a_bad_one_is_refused_and_then_the_authentication_fails() -> None:
    one = server()
    assert json.loads(one.respond(message(token(OTHER)))) == {"status": "invalid_token"}
    with pytest.raises(SaslFailure) as failed:
        one.respond(b"\x01")
    assert "signature" in str(failed.value) and "signature" not in str(failed.value.public)
    with pytest.raises(SaslFailure):
        one.respond(message(token()))
    assert not one.complete


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        message(token(), "y,,"),
        message(token(), "n,a=bob,"),
        message(token(), "n,b=alice,"),
        message(token())[:-1],
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
    ],
)
def test_malformed_messages(text: bytes) -> None:
    with pytest.raises(SaslFailure):
        server().respond(text)


@settings(max_examples=30)
@given(st.binary())
def test_any_message(text: bytes) -> None:
    one = server()
    with contextlib.suppress(SaslFailure):
        one.respond(text)
    assert not one.complete


@settings(max_examples=30)
@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_any_token(header: str, body: str, signature: str) -> None:
    with pytest.raises(SaslFailure):
        validated(f"{header}.{body}.{signature}")
