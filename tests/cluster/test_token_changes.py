"""Delegation tokens: what the controller decides about them."""

from __future__ import annotations

from typing import Any

import pytest

from twisted_broker.cluster import token_changes
from twisted_broker.cluster.image_records import image_records
from twisted_broker.cluster.token_changes import (
    TokenDecision,
    TokenSettings,
    create,
    expire,
    login_of,
    removals,
    renew,
)
from twisted_broker.image.metadata_image import METADATA_VERSION, MetadataImage
from twisted_broker.security.principal import Principal
from twisted_broker.security.sasl.scram import SHA_256
from twisted_broker.security.sasl.tokens import TokenSecret
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.metadata_records import (
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
)
from twisted_broker.wire.messages.tokens import CreatableRenewer, CreateDelegationTokenRequest
from twisted_broker.wire.schema import run_whole

NOW = 1_700_000_000_000
ALICE, BOB, CAROL = (Principal("User", name) for name in ("alice", "bob", "carol"))
SECRET = TokenSecret("the-secret")
SETTINGS = TokenSettings(SECRET, max_lifetime_ms=10_000, expiry_ms=1_000)
EMPTY = MetadataImage(features={METADATA_VERSION: 14})
CODES = ErrorCode


def request(*renewers: str, lifetime: int = -1, kind: str = "User") -> CreateDelegationTokenRequest:
    made = [CreatableRenewer(principal_type=kind, principal_name=each) for each in renewers]
    return CreateDelegationTokenRequest(renewers=made, max_lifetime_ms=lifetime)


def created(
    image: MetadataImage = EMPTY,
    wanted: CreateDelegationTokenRequest | None = None,
    owner: Principal = ALICE,
    token_id: str = "t",
    settings: TokenSettings = SETTINGS,
    requester: Principal = ALICE,
) -> TokenDecision:
    return create(image, settings, wanted or request(), requester, owner, token_id, NOW)


def applied(image: MetadataImage, decision: TokenDecision) -> MetadataImage:
    return image.apply(decision.records)[0]


HELD = applied(EMPTY, created(wanted=request("bob")))


def changed(change: Any, period: int, who: Principal = ALICE, now: int = NOW, **more: Any) -> Any:
    given = {"image": HELD, "settings": SETTINGS, "given": SECRET.hmac_of("t")} | more
    return run_whole(change(given["image"], given["settings"], given["given"], period, who, now))


def refused(call: Any, *arguments: Any, **more: Any) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        call(*arguments, **more)
    return caught.value.code


def test_a_token_says_whose_it_is_and_until_when() -> None:
    (record,) = created(wanted=request("bob", "carol"), owner=BOB).records
    assert record == DelegationTokenRecord(
        owner="User:bob",
        requester="User:alice",
        renewers=["User:bob", "User:carol"],
        issue_timestamp=NOW,
        max_timestamp=NOW + 10_000,
        expiration_timestamp=NOW + 1_000,
        token_id="t",
    )
    assert list(image_records(HELD))[-1] == HELD.tokens["t"]  # in snapshots, too


@pytest.mark.parametrize(
    ("lifetime", "longest", "expiry"),
    [(-1, 10_000, 1_000), (0, 10_000, 1_000), (400, 400, 400), (2**62, 10_000, 1_000)],
)
def test_a_lifetime_is_at_most_the_settings(lifetime: int, longest: int, expiry: int) -> None:
    token = created(wanted=request(lifetime=lifetime)).token
    assert (token.max_timestamp - NOW, token.expiration_timestamp - NOW) == (longest, expiry)


def test_a_time_beyond_all_times_is_the_last_one() -> None:
    endless = SETTINGS._replace(max_lifetime_ms=2**63 - 1, expiry_ms=2**63 - 1)
    token = created(settings=endless).token
    assert token.max_timestamp == token.expiration_timestamp == 2**63 - 1


def test_what_is_not_possible() -> None:
    without, old = SETTINGS._replace(secret=None), MetadataImage(features={METADATA_VERSION: 13})
    assert refused(created, settings=without) == CODES.DELEGATION_TOKEN_AUTH_DISABLED
    assert refused(created, old) == CODES.UNSUPPORTED_VERSION
    for change in (renew, expire):
        code = refused(changed, change, 1, settings=without)
        assert code == CODES.DELEGATION_TOKEN_AUTH_DISABLED
        assert refused(changed, change, 1, image=old) == CODES.UNSUPPORTED_VERSION
        for given in (b"", b"x" * 64, SECRET.hmac_of("u")):
            code = refused(changed, change, 1, given=given)
            assert code == CODES.DELEGATION_TOKEN_NOT_FOUND


def test_owners_and_renewers_are_users() -> None:
    for wanted, owner in ((request("g", kind="Group"), ALICE), (request(), Principal("G", "g"))):
        assert refused(created, wanted=wanted, owner=owner) == CODES.INVALID_PRINCIPAL_TYPE


def test_nobody_fills_the_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(created, wanted=request("x" * 8192)) == CODES.INVALID_REQUEST
    assert refused(created, wanted=request("\U0001f511" * 2048)) == CODES.INVALID_REQUEST
    assert created(wanted=request(*"a" * 500))
    monkeypatch.setattr(token_changes, "MOST_OF_ONE", 2)
    image = applied(HELD, created(token_id="u"))
    assert refused(created, image) == CODES.POLICY_VIOLATION
    assert created(image, owner=BOB, requester=BOB)
    assert created(applied(HELD, created(requester=BOB, token_id="u")))


def test_owner_and_renewers_renew_within_the_longest_life() -> None:
    for who, period, now, expected in (
        (ALICE, -1, NOW, NOW + 1_000),
        (ALICE, 0, NOW + 500, NOW + 1_500),
        (BOB, 200, NOW, NOW + 200),
        (BOB, 2**62, NOW + 900, NOW + 1_900),
    ):
        token = changed(renew, period, who, now).token
        assert token.expiration_timestamp == expected and token.max_timestamp == NOW + 10_000
    kept = applied(HELD, changed(renew, 1_000, now=NOW + 1_000))
    for last in range(2_000, 10_000, 1_000):
        kept = applied(kept, changed(renew, 1_000, now=NOW + last, image=kept))
    token = changed(renew, 1_000, now=NOW + 9_999, image=kept).token
    assert token.expiration_timestamp == token.max_timestamp


def test_others_change_nothing_though_they_know_the_hmac() -> None:
    for change in (renew, expire):
        code = CODES.DELEGATION_TOKEN_OWNER_MISMATCH
        assert refused(changed, change, 1, CAROL) == code
    # Nor does who requested it for another.
    image = applied(EMPTY, created(owner=BOB))
    assert refused(changed, renew, 1, ALICE, image=image) == CODES.DELEGATION_TOKEN_OWNER_MISMATCH


def test_what_expired_is_only_removed() -> None:
    later = NOW + 1_001
    assert refused(changed, renew, 1, now=later) == CODES.DELEGATION_TOKEN_EXPIRED
    assert refused(changed, expire, 1, now=later) == CODES.DELEGATION_TOKEN_EXPIRED
    assert changed(renew, 1, now=NOW + 1_000)  # the last millisecond
    gone = changed(expire, -1, BOB, later)
    assert gone.is_removed and gone.token.expiration_timestamp == later
    assert not applied(HELD, gone).tokens


def test_an_earlier_expiry() -> None:
    assert changed(expire, 0).token.expiration_timestamp == NOW
    assert changed(expire, 2**62).token.expiration_timestamp == NOW + 10_000


def test_a_login_ends_with_the_token() -> None:
    found = login_of(HELD, SECRET, SHA_256, "t", NOW)
    assert found is not None and found[1:] == ("alice", NOW + 1_000)
    assert login_of(HELD, SECRET, SHA_256, "t", NOW + 1_001) is None
    assert login_of(HELD, SECRET, SHA_256, "u", NOW) is None
    strange = DelegationTokenRecord(owner="Group:alice", token_id="g", max_timestamp=2**62)
    strange.expiration_timestamp = 2**62
    image = HELD.apply([strange])[0]
    assert login_of(image, SECRET, SHA_256, "g", NOW) is None


def test_what_is_over_is_removed() -> None:
    image = applied(HELD, created(wanted=request(lifetime=500), token_id="short"))
    assert run_whole(removals(image, NOW + 500)) == []
    found = run_whole(removals(image, NOW + 501))
    assert found == [RemoveDelegationTokenRecord(token_id="short")]
    assert len(run_whole(removals(image, NOW + 1_001))) == 2
