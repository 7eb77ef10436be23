"""Cases: delegation tokens. On a listener without authentication nobody may have one, which is all
that a broker's listener shows there; the controller's believes an Envelope. What it answers then
is one error where `delegation.token.secret.key` is not set: these cases are worth most between
two nodes that have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.compare.side import ROUTE_OF, WAIT_SECONDS, Side, built
from twisted_broker.security.principal import Principal, TokenPrincipal, encode_principal
from twisted_broker.wire.errors import ErrorCode
from twisted_broker.wire.header import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from twisted_broker.wire.messages.broker_lifecycle import EnvelopeResponse
from twisted_broker.wire.schema import decode, encode

ALICE, BOB, CAROL = (Principal("User", each) for each in ("alice", "bob", "carol"))
Ask = Callable[..., Any]


def tidied(side: Side) -> Callable[[Any], None]:
    """Ids and HMACs are made up; times are compared from the token's beginning on."""

    def tidy(answer: Any) -> None:
        if getattr(answer, "token_id", ""):
            side.hide(answer.token_id, "(token)")
            side.hide(bytes(answer.hmac), "(hmac)")
        for each in getattr(answer, "tokens", ()):
            side.hide(each.token_id, "(token)")
            side.hide(bytes(each.hmac), "(hmac)")
            began, each.issue_timestamp = each.issue_timestamp, 0
            each.expiry_timestamp -= began
            each.max_timestamp -= began
        began = getattr(answer, "issue_timestamp_ms", 0)
        if began > 0:
            answer.issue_timestamp_ms = 0
            answer.expiry_timestamp_ms -= began
            answer.max_timestamp_ms -= began
        elif getattr(answer, "expiry_timestamp_ms", 0) > 1_000_000_000_000:
            # from now on, in ten minutes: the two are not asked in the same moment
            answer.expiry_timestamp_ms = (answer.expiry_timestamp_ms - side.now_ms) // 600_000

    return tidy


def creation(*renewers: str, owner: Principal | None = None, **more: Any) -> dict[str, Any]:
    return {
        "owner_principal_type": None if owner is None else owner.kind,
        "owner_principal_name": None if owner is None else owner.name,
        "renewers": [
            dict(zip(("principal_type", "principal_name"), each.split(":"), strict=True))
            for each in renewers
        ],
        "max_lifetime_ms": -1,
    } | more


def _plain(side: Side) -> None:
    """All that a listener without authentication shows."""
    tidy = tidied(side)
    if side.api == "CreateDelegationToken":
        side.ask("own", tidy, **creation())
        side.ask("another's", tidy, **creation("User:bob", owner=ALICE))
        side.ask("a renewer of another type", tidy, **creation("Group:g"))
    else:
        name = "renew" if side.api == "RenewDelegationToken" else "expiry_time"
        for label, hmac in (("no hmac", b""), ("unknown", b"h" * 64)):
            side.ask(label, tidy, hmac=hmac, **{f"{name}_period_ms": -1})


def create_delegation_token(side: Side, version: int) -> None:
    _plain(side)
    _on_controller(side, lambda ask: created(side, ask))


def renew_delegation_token(side: Side, version: int) -> None:
    _plain(side)
    _on_controller(side, lambda ask: renewed(side, ask))


def expire_delegation_token(side: Side, version: int) -> None:
    _plain(side)
    _on_controller(side, lambda ask: expired(side, ask))


def describe_delegation_token(side: Side, version: int) -> None:
    for label, owners in (
        ("all", None),
        ("none", []),
        ("one's", [{"principal_type": "User", "principal_name": "alice"}]),
    ):
        side.ask(label, tidied(side), owners=owners)


def _until(ask: Ask, done: Callable[[int], bool], **fields: Any) -> None:
    """Kafka's controller hears of what it wrote a little later; nothing changes meanwhile, as the
    principal is nobody the token knows.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    name = "RenewDelegationToken"
    while True:
        answer = ask("", CAROL, wanted=name, renew_period_ms=-1, **fields)
        if done(answer.error_code):
            return
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)


def _is_known(code: int) -> bool:
    return code != ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def _on_controller(side: Side, cases: Callable[[Ask], None]) -> None:
    """The cases in Envelopes, on a controller's listener."""
    if not side.prefix.startswith("c-"):
        return
    api, version = side.api, side.version

    def ask(label: str, principal: Principal = ALICE, wanted: str = "", **fields: Any) -> Any:
        name = wanted or api
        route = ROUTE_OF[name]
        number = route.controller.max if wanted else version
        header = RequestHeader(route.api_key, number, 1, "compare")
        body = encode(built(route.request_class(), number, fields), number)
        answer = side.call(
            "Envelope",
            0,
            {
                "request_data": encode_request_header(header) + body,
                "request_principal": encode_principal(principal),
                "client_host_address": bytes((127, 0, 0, 1)),
            },
        )
        if isinstance(answer, EnvelopeResponse) and answer.response_data:
            data = bytes(answer.response_data)
            _, offset = decode_response_header(data, route.api_key, number)
            answer = decode(route.response_class(), data, number, offset)
            tidied(side)(answer)
        if not wanted:
            side.note(label, answer)
        return answer

    cases(ask)


def created(side: Side, ask: Ask) -> None:
    ask("own", **creation())
    ask("by a token", TokenPrincipal(*ALICE), **creation())
    ask("with renewers", **creation("User:bob", "User:bob", "User:"))
    ask("with a renewer of another type", **creation("User:bob", "Group:g"))
    ask("another's", **creation(owner=BOB))
    ask("one's own by name", **creation(owner=ALICE))
    for lifetime in (0, 1, 60_000, 2**62):
        ask(f"for {lifetime} ms", **creation(max_lifetime_ms=lifetime))


def _new(ask: Ask) -> bytes:
    """The HMAC of a token of alice that bob may renew, once it is known."""
    fields = creation("User:bob", owner=ALICE)
    hmac = bytes(ask("", wanted="CreateDelegationToken", **fields).hmac)
    _until(ask, _is_known, hmac=hmac)
    return hmac


def renewed(side: Side, ask: Ask) -> None:
    hmac = _new(ask)

    def asked(label: str, principal: Principal = ALICE, *, period: int = -1, **more: Any) -> None:
        ask(label, principal, **({"hmac": hmac, "renew_period_ms": period} | more))

    asked("by the owner")
    asked("by a renewer", BOB)
    asked("by another", CAROL)
    asked("by a token", TokenPrincipal(*ALICE))
    asked("unknown", hmac=b"h" * 64)
    asked("no hmac", hmac=b"")
    for period in (0, 3_600_000, 2**62, 600_000):
        asked(f"for {period} ms", period=period)


def expired(side: Side, ask: Ask) -> None:
    hmac = _new(ask)

    def asked(label: str, principal: Principal = ALICE, *, period: int = -1, **more: Any) -> None:
        ask(label, principal, **({"hmac": hmac, "expiry_time_period_ms": period} | more))

    asked("by another", CAROL)
    asked("by a token", TokenPrincipal(*ALICE))
    asked("unknown", hmac=b"h" * 64)
    asked("in an hour", period=3_600_000)
    asked("far away", period=2**62)
    asked("by a renewer", BOB, period=7_200_000)
    asked("soon", period=0)
    expired_now = ErrorCode.DELEGATION_TOKEN_EXPIRED
    _until(
        ask, lambda code: code in (expired_now, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED), hmac=hmac
    )
    asked("later, once it is over", period=3_600_000)
    asked("at once, after that", BOB)
    _until(
        ask,
        lambda code: not _is_known(code) or code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
        hmac=hmac,
    )
    asked("once more")
