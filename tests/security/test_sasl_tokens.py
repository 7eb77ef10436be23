"""Delegation tokens: what is derived of their ids, and the login by one."""

from __future__ import annotations

from base64 import b64decode, b64encode

import pytest

from twisted_broker.security.principal import (
    Principal,
    TokenPrincipal,
    decode_principal,
    encode_principal,
    parse_principal,
)
from twisted_broker.security.sasl import scram, tokens
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.scram import (
    MECHANISMS,
    SHA_256,
    ScramClient,
    ScramMechanism,
    ScramServer,
    TokenLogin,
)
from twisted_broker.security.sasl.tokens import TokenSecret
from twisted_broker.wire.errors import WireError
from twisted_broker.wire.schema import run_whole

TOKEN = "oUxTRhfUTuOchCgnscewlw"
# Apache Kafka 4.3.1's, of delegation.token.secret.key=the-secret.
HMAC = b64decode(
    "5ZepM0eFtcTcsoDlvH1Pf10FA0fulIGLVh03n2On82JjsnYGpQWdk8bYFl8Le7NNcgJV0craGvcALpCq0g+ztA=="
)
EXPIRES = 1_700_000_000_000


def test_the_hmac_is_kafkas() -> None:
    secret = TokenSecret("the-secret")
    assert secret.hmac_of(TOKEN) == HMAC
    assert TokenSecret("another").hmac_of(TOKEN) != HMAC
    assert "the-secret" not in repr(secret)


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=lambda each: each.name)
def test_who_knows_the_hmac_is_the_owner(mechanism: ScramMechanism) -> None:
    secret, nonce = TokenSecret("the-secret"), "n" * 20

    def login(token_id: str) -> TokenLogin | None:
        if token_id != TOKEN:
            return None
        return TokenLogin(secret.credential(mechanism, token_id), "alice", EXPIRES)

    def server(
        password: bytes, token_id: str = TOKEN, token_authenticated: bool = True
    ) -> ScramServer:
        text = b64encode(password).decode()
        client = ScramClient(mechanism, token_id, text, nonce, token_authenticated)
        made = ScramServer(mechanism, lambda name: None, "s" * 20, login)
        message: bytes | None = client.first()
        while message is not None:
            message = client.respond(made.respond(message))
        return made

    good = server(HMAC)
    assert good.complete and good.token_authenticated
    assert (good.authorization_id, good.expires_wall_ms) == ("alice", EXPIRES)
    with pytest.raises(SaslFailure, match="the HMAC is wrong"):
        server(b"x" * 64)
    with pytest.raises(SaslFailure, match="none that holds"):
        server(HMAC, "another")
    with pytest.raises(SaslFailure, match=r"there is no .* must set tokenauth=true"):
        server(HMAC, token_authenticated=False)  # a token is no user
    with pytest.raises(SaslFailure, match=r"there is no SCRAM-SHA-... credential$"):
        server(HMAC, "another", token_authenticated=False)


def test_the_name_of_a_token_lets_nobody_act_for_its_owner() -> None:
    """The authorization id of a login by token is the token's id, or empty."""
    secret = TokenSecret("s")
    found = TokenLogin(secret.credential(SHA_256, TOKEN), "alice", EXPIRES)
    made = ScramServer(SHA_256, lambda name: None, "s", lambda token_id: found)
    with pytest.raises(SaslFailure, match="wants to act for 'alice'"):
        made.respond(b"n,a=alice,n=%s,r=abc,tokenauth=true" % TOKEN.encode())


def test_a_user_does_not_become_a_token_by_another_extension() -> None:
    found = TokenLogin(TokenSecret("s").credential(SHA_256, TOKEN), "alice", EXPIRES)
    made = ScramServer(SHA_256, lambda name: None, "s", lambda token_id: found)
    with pytest.raises(SaslFailure, match="there is no"):
        made.respond(b"n,,n=alice,r=abc,tokenauth=false,x=tokenauth")
    assert not made.token_authenticated


def test_a_token_is_found_by_its_hmac_only_while_it_is_there() -> None:
    secret = TokenSecret("s")
    first = {f"t{number}": number for number in range(1200)}

    def found(ids: dict[str, int], token_id: str) -> str | None:
        return run_whole(secret.token_of(ids, secret.hmac_of(token_id)))

    assert found(first, "t7") == "t7" and found(first, "t1199") == "t1199"
    assert found(first, "t1200") is None
    second = {each: n for each, n in first.items() if each != "t7"} | {"t1200": 0}
    assert found(second, "t7") is None and found(second, "t1200") == "t1200"
    assert len(secret._digests) == len(secret._by_digest) == 1200
    # A search of many new tokens is in steps; one that began earlier ends later, and harms none.
    third = second | {f"u{number}": 0 for number in range(600)}
    fourth = {"t1": 1}
    search = secret.token_of(third, secret.hmac_of("u1"))
    next(search)
    assert found(fourth, "u1") is None and found(fourth, "t1") == "t1"
    with pytest.raises(StopIteration):
        next(search)
    assert found(fourth, "u1") is None and found(third, "u599") == "u599"


def test_credentials_are_remembered_but_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = scram.salted_password

    def counted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        made.append(iterations)
        return real(mechanism, password, salt, 1)

    monkeypatch.setattr(tokens, "salted_password", counted)
    monkeypatch.setattr(tokens, "_CREDENTIALS", 3)
    secret = TokenSecret("s")
    for token_id in "abcaad":
        secret.credential(SHA_256, token_id)
    assert made == [4096] * 4 and len(secret._credentials) == 3
    secret.credential(SHA_256, "a")  # used last: kept
    assert len(made) == 4
    secret.credential(SHA_256, "b")
    assert len(made) == 5


def test_a_principal_that_came_by_a_token_is_the_same_and_says_so() -> None:
    """For permissions and quotas the same; on the way to the controller it stays marked."""
    alice, token = Principal("User", "alice"), TokenPrincipal("User", "alice")
    assert alice == token and hash(alice) == hash(token) and str(token) == "User:alice"
    for each in (alice, token):
        data = encode_principal(each)
        assert decode_principal(data).token_authenticated is each.token_authenticated
        with pytest.raises(WireError):
            decode_principal(data[:-2])
    assert token.token_authenticated and not alice.token_authenticated
    assert parse_principal("User:a:b") == ("User", "a:b")
