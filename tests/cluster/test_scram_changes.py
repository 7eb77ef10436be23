"""Users of SCRAM: what the controller decides, and what is told of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.fixtures import Fixture
from twisted_broker.cluster.scram_changes import describe, parse_user, stored_credential
from twisted_broker.image.metadata_image import MetadataImage
from twisted_broker.security.sasl.scram import (
    BY_CODE,
    SHA_256,
    SHA_512,
    credential_of,
    salted_password,
)
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.messages.sasl import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

SALTED = salted_password(SHA_256, "secret", b"salt", 4096)


def upsertion(name: str, mechanism: int = 1, **more: Any) -> ScramCredentialUpsertion:
    salted = salted_password(BY_CODE.get(mechanism, SHA_256), "secret", b"salt", 4096)
    given = {"iterations": 4096, "salt": b"salt", "salted_password": salted} | more
    return ScramCredentialUpsertion(name=name, mechanism=mechanism, **given)


def deletion(name: str, mechanism: int = 1) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def altered(fixture: Fixture, upsertions: Any = (), deletions: Any = ()) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(
        upsertions=list(upsertions), deletions=list(deletions)
    )
    answer = fixture.ask("alter_user_scram_credentials", request, 0)
    return {each.user: each.error_code for each in answer.results}


def image(fixture: Fixture) -> MetadataImage:
    return fixture.controller.image


def test_a_user_is_stored_without_the_password(fixture: Fixture) -> None:
    assert altered(fixture, [upsertion("alice")]) == {"alice": 0}
    found = stored_credential(image(fixture), SHA_256, "alice")
    assert found == credential_of(SHA_256, SALTED, b"salt", 4096)
    assert SALTED not in (found.stored_key, found.server_key)
    assert altered(fixture, deletions=[deletion("alice")]) == {"alice": 0}
    assert stored_credential(image(fixture), SHA_256, "alice") is None


def test_a_credential_is_replaced_and_each_mechanism_has_its_own(fixture: Fixture) -> None:
    altered(fixture, [upsertion("alice")])
    altered(fixture, [upsertion("alice", iterations=8192)])
    altered(fixture, [upsertion("alice", 2)])
    (alice,) = describe(image(fixture), None)
    assert [(each.mechanism, each.iterations) for each in alice.credential_infos] == [
        (1, 8192),
        (2, 4096),
    ]


def test_a_user_is_changed_once_in_a_request(fixture: Fixture) -> None:
    altered(fixture, [upsertion("alice"), upsertion("bob")])
    twice = ErrorCode.DUPLICATE_RESOURCE
    found = altered(
        fixture,
        [upsertion("alice", iterations=9999), upsertion("carol"), upsertion("bob", 2)],
        [deletion("alice"), deletion("bob")],
    )
    assert found == {"alice": twice, "bob": twice, "carol": 0}
    assert [each.user for each in describe(image(fixture), [])] == ["alice", "bob", "carol"]
    alice = stored_credential(image(fixture), SHA_256, "alice")
    assert alice is not None and alice.iterations == 4096


def test_what_is_wrong_with_a_users_first_change_comes_before_the_second(fixture: Fixture) -> None:
    """As Kafka's ScramControlManager: deletions first, and a user's first error stays."""
    found = altered(
        fixture,
        [upsertion("alice"), upsertion("bob"), upsertion("carol"), upsertion("carol", 3)],
        [deletion("alice"), deletion("bob", 33)],
    )
    assert found == {
        "alice": ErrorCode.RESOURCE_NOT_FOUND,
        "bob": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "carol": ErrorCode.DUPLICATE_RESOURCE,
    }
    assert not image(fixture).scram


def test_the_first_change_of_a_user_counts_in_a_long_request(fixture: Fixture) -> None:
    """One that is decided on in several parts."""
    names = ["late", *(f"user-{number}" for number in range(25)), "late"]
    found = altered(fixture, [upsertion(each, 1 if at else 3) for at, each in enumerate(names)])
    assert found.pop("late") == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert len(found) == 25 and not any(found.values())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion("a", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (upsertion("a", iterations=4095), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", iterations=16385), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", salt=bytes(1025)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", salted_password=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", salted_password=b"short"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", salted_password=bytes(64)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (upsertion("a", 2, salted_password=bytes(32)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (deletion("a"), ErrorCode.RESOURCE_NOT_FOUND),
        (deletion("", 1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_refusals(fixture: Fixture, change: Any, code: ErrorCode) -> None:
    is_deletion = isinstance(change, ScramCredentialDeletion)
    found = altered(fixture, [] if is_deletion else [change], [change] if is_deletion else [])
    assert found == {change.name: code}
    assert not image(fixture).scram


def test_an_old_cluster_stores_no_users(fixture: Fixture) -> None:
    from twisted_broker.cluster.scram_changes import alter

    found, answer = alter(MetadataImage(), [upsertion("a")], {"a": 1})
    assert not found and answer.results[0].error_code == ErrorCode.UNSUPPORTED_VERSION


def test_many_users_in_one_request(fixture: Fixture) -> None:
    names = [f"user-{number}" for number in range(25)]
    assert altered(fixture, map(upsertion, names)) == dict.fromkeys(names, 0)
    assert len(image(fixture).scram) == 25


def test_what_is_told_of_users(fixture: Fixture) -> None:
    altered(fixture, [upsertion("alice"), upsertion("bob")])
    found = describe(image(fixture), ["bob", "nobody", "alice", "alice"])
    assert [(each.user, each.error_code, len(each.credential_infos)) for each in found] == [
        ("alice", ErrorCode.DUPLICATE_RESOURCE, 0),
        ("bob", 0, 1),
        ("nobody", ErrorCode.RESOURCE_NOT_FOUND, 0),
    ]


def test_a_user_of_the_command_line() -> None:
    expected = credential_of(SHA_256, SALTED, b"salt", 4096)
    for text in (
        "SCRAM-SHA-256=[name=alice,password=secret]",
        ' SCRAM-SHA-256=[name="alice",iterations=4096,password="secret"]',
        "SCRAM-SHA-256=[name=alice,salt=c2FsdA==,saltedpassword="
        "jkSSoAEOLyPQ/C9hvK5BxPZUXTM0Dvtm+hMb1cBsYds=]",
    ):
        user = parse_user(text, b"salt")
        assert (user.name, user.mechanism, user.salt) == ("alice", 1, b"salt")
        if "password=sec" in text or 'password="sec' in text:
            assert user.stored_key == expected.stored_key
    assert parse_user("SCRAM-SHA-512=[name=a,password=b]", b"s").mechanism == SHA_512.code


def test_iterations_of_the_command_line() -> None:
    """From 4096 to 16384, both included, as Kafka's."""
    for number in (4096, 8192, 16384):
        text = f"SCRAM-SHA-256=[name=alice,password=secret,iterations={number}]"
        user = parse_user(text, b"salt")
        expected = credential_of(
            SHA_256, salted_password(SHA_256, "secret", b"salt", number), b"salt", number
        )
        assert (user.iterations, user.stored_key) == (number, expected.stored_key)
    for number in (4095, 16385):
        with pytest.raises(ValueError, match="iterations= from 4096 to 16384"):
            parse_user(f"SCRAM-SHA-256=[name=a,password=secret,iterations={number}]", b"salt")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "PLAIN=[name=a,password=secret]",
        "SCRAM-SHA-256=name=a,password=secret",
        "SCRAM-SHA-256=[password=secret]",
        "SCRAM-SHA-256=[name=,password=secret]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[name=a,saltedpassword=c2VjcmV0]",
        "SCRAM-SHA-256=[name=a,password=secret,iterations=1]",
        "SCRAM-SHA-256=[name=a,password=secret,iterations=99999]",
        "SCRAM-SHA-256=[name=a,password=secret,password=secret]",
        "SCRAM-SHA-256=[name=a,password=secret,secret=1]",
        "SCRAM-SHA-256=[name=a,password=secret,salt=secret!]",
        "SCRAM-SHA-256=[name=a,password=secret,salt=]",
        "SCRAM-SHA-256=[name=a,saltedpassword=c2VjcmV0,salt=c2FsdA==]",
    ],
)
def test_what_the_command_line_refuses(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_user(text, b"salt")
    assert "=secret" not in str(refused.value)
