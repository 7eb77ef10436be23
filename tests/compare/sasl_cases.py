"""Cases of SASL's APIs on a listener without SASL: nobody may authenticate; users of SCRAM."""

from __future__ import annotations

from typing import Any

from tests.compare.side import Side

SHA_256, SHA_512 = 1, 2


def _set(name: str, mechanism: int = SHA_256, **more: Any) -> dict[str, Any]:
    salted = b"p" * (64 if mechanism == SHA_512 else 32)
    given = {"iterations": 4096, "salt": b"salt", "salted_password": salted} | more
    return {"name": name, "mechanism": mechanism} | given


def _deletion(name: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def _all_deleted(side: Side) -> None:
    found = side.latest("DescribeUserScramCredentials", users=None)
    for each in found.results:
        for info in each.credential_infos:
            side.latest(
                "AlterUserScramCredentials",
                deletions=[_deletion(each.user, info.mechanism)],
                upsertions=[],
            )
    _settled(side, 0)


def _settled(side: Side, users: int) -> None:
    """A broker hears of a change later than the client."""
    side.settled(
        "DescribeUserScramCredentials",
        lambda answer: sum(bool(each.credential_infos) for each in answer.results) == users,
        users=None,
    )


def sasl_handshake(side: Side, version: int) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "GSSAPI", ""):
        side.ask(f"mechanism {mechanism!r}", mechanism=mechanism)


def sasl_authenticate(side: Side, version: int) -> None:
    for token in (b"", b"\0alice\0secret"):
        side.ask(f"{token!r}", auth_bytes=token)


def describe_user_scram_credentials(side: Side, version: int) -> None:
    for user, mechanism in (("alice", SHA_256), ("alice", SHA_512), ("bob", SHA_512)):
        some = [_set(user, mechanism, iterations=4096 * mechanism)]
        side.latest("AlterUserScramCredentials", deletions=[], upsertions=some)
    _settled(side, 2)

    def asked(label: str, users: Any) -> None:
        side.ask(label, users=users)

    asked("all", None)
    asked("all, by an empty list", [])
    asked("one", [{"name": "bob"}])
    asked("two, one is not there", [{"name": "alice"}, {"name": "nobody"}])
    asked("twice", [{"name": "alice"}, {"name": "alice"}, {"name": "bob"}])
    asked("without a name", [{"name": ""}])
    _all_deleted(side)
    asked("none is left", None)


def alter_user_scram_credentials(side: Side, version: int) -> None:
    def asked(label: str, *upsertions: dict[str, Any], deletions: Any = ()) -> None:
        side.ask(label, deletions=list(deletions), upsertions=list(upsertions))

    asked("nothing")
    asked("a new user", _set("alice"))
    asked("the same again", _set("alice", iterations=8192))
    asked("the other mechanism", _set("alice", SHA_512))
    asked("an empty name", _set(""))
    for iterations in (0, -1, 4095, 16385, 2**31 - 1):
        asked(f"{iterations} iterations", _set("bob", iterations=iterations))
    for mechanism in (0, 3, -1):
        asked(f"mechanism {mechanism}", _set("bob", mechanism))
        asked(f"deletion of mechanism {mechanism}", deletions=[_deletion("alice", mechanism)])
    asked("without a salt", _set("bob", salt=b""))
    asked("salted, 5 bytes", _set("bob", salted_password=b"short"))
    asked("salted, empty", _set("bob", salted_password=b""))
    asked("bob", _set("bob"))
    asked("twice", _set("carol"), _set("carol", SHA_512))
    asked("set and deleted", _set("alice"), deletions=[_deletion("alice")])
    asked("deleted twice", deletions=[_deletion("alice"), _deletion("alice", SHA_512)])
    asked("one good, one not", _set("dave"), _set("erin", iterations=1))
    asked("no such user", deletions=[_deletion("nobody")])
    asked("no such credential", deletions=[_deletion("dave", SHA_512)])
    asked("a deletion", deletions=[_deletion("dave")])
    asked("again", deletions=[_deletion("dave")])
    _settled(side, 2)  # alice and bob
    _all_deleted(side)


def alter_user_scram_on_controller(side: Side, version: int) -> None:
    """Which describes no user."""

    def asked(label: str, *upsertions: dict[str, Any], deletions: Any = ()) -> None:
        side.ask(label, deletions=list(deletions), upsertions=list(upsertions))

    asked("a new user", _set("alice"))
    asked("too few iterations", _set("bob", iterations=1))
    asked("a deletion", deletions=[_deletion("alice")])
    asked("again", deletions=[_deletion("alice")])
