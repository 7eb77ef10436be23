"""Cases: client telemetry (KIP-714). The interval is long, so that answers depend on no clock."""

from __future__ import annotations

from typing import Any

from tests.compare.side import CLOSED, SILENT, Side

ZERO, RESERVED = bytes(16), bytes(15) + b"\1"


def _got(side: Side, number: int) -> dict[str, Any]:
    """What a push of this client needs."""
    instance_id = number.to_bytes(16, "big")
    answer = side.call("GetTelemetrySubscriptions", 0, {"client_instance_id": instance_id})
    assert answer not in (CLOSED, SILENT)
    return {"client_instance_id": instance_id, "subscription_id": answer.subscription_id}


def get_telemetry_subscriptions(side: Side, version: int) -> None:
    for label, number in (("own id", 1001), ("again, too early", 1001), ("another", 1002)):
        answer = side.ask(label, client_instance_id=number.to_bytes(16, "big"))
        if answer not in (CLOSED, SILENT) and answer.subscription_id:
            side.hide(answer.subscription_id, f"(subscription of {number})")


def push_telemetry(side: Side, version: int) -> None:
    side.ask("the zero id", client_instance_id=ZERO)
    side.ask("a reserved id", client_instance_id=RESERVED)
    side.ask("of nobody", client_instance_id=b"n" * 16, subscription_id=7)
    first = _got(side, 1003)
    side.ask("empty", **first)
    side.ask("too early", **first)
    side.ask("the last one", **first, terminating=True)
    side.ask("behind the last one", **first)
    side.ask("no such codec", **_got(side, 1004), compression_type=5)
    side.ask("too large", **_got(side, 1005), metrics=bytes(1048577))
    other = _got(side, 1006)
    other["subscription_id"] ^= 1
    side.ask("another subscription", **other)
