"""Client telemetry (KIP-714): what a client pushes that lies about itself."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

from tests.compare.side import CLOSED, SILENT
from tests.hostile.records import BOMBS
from tests.hostile.run import Round
from tests.hostile.target import NONE
from tests.telemetry.payloads import attribute, gauge, nested, payload, point, varint

_NONE, _GZIP = 0, 1
_RESERVED = (bytes(16), b"\0" * 15 + b"\1")
_PREFIX = "hostile."


def client_telemetry(one: Round) -> None:
    if one.wants_login or one.target.version("PushTelemetry") < 0:
        one.says("nothing: it is not offered here")
        return
    _subscribe(one)
    payloads = [*_unreadable(), *_large(one)]
    one.says(f"{len(payloads)} payloads that lie, inflate, nest or never end, a client for each")
    for number, (what, codec, metrics) in enumerate(payloads):
        kind = _push(one, (1000 + number).to_bytes(16, "big"), codec, metrics)
        one.must(kind != SILENT, f"{what}: no answer")
        if what in _REFUSED:
            one.must(kind not in (NONE, CLOSED), f"{what}: {kind}")
        one.note(kind)
    for instance in _RESERVED:
        one.must(_push(one, instance, _NONE, b"x") != NONE, "a reserved instance id is accepted")
    count = one.many(20_000, 100)
    one.says(f"{count:,} clients that ask for their subscriptions and come no more")
    with one.wire() as wire:
        for number in range(count):
            fields = {"client_instance_id": b"crowd" + number.to_bytes(11, "big")}
            wire.call("GetTelemetrySubscriptions", 0, fields)
    one.note("asked", count)


def _subscribe(one: Round) -> None:
    """To everything, for clients of this corpus."""
    configs = [
        {"name": name, "config_operation": 0, "value": value}
        for name, value in (("metrics", "*"), ("interval.ms", "100"))
    ]
    changes = {
        "resources": [{"resource_type": 16, "resource_name": "hostile", "configs": configs}],
        "validate_only": False,
    }
    with one.target.logged_in() as wire:
        wire.call("IncrementalAlterConfigs", 1, changes)


def _push(one: Round, instance: bytes, codec: int, metrics: bytes) -> str:
    """As a client does: it asks for its subscription first."""
    with one.wire() as wire:
        asked = {"client_instance_id": instance}
        found = wire.call("GetTelemetrySubscriptions", 0, asked)
    return one.target.result(
        one.target.request(
            "PushTelemetry",
            0,
            client_instance_id=instance,
            subscription_id=found.subscription_id,
            terminating=False,
            compression_type=codec,
            metrics=metrics,
        ),
        one.wire,
    )


_REFUSED = frozenset({"a varint without end", "a group", "a length beyond the end", "codec 99"})


def _unreadable() -> Iterator[tuple[str, int, bytes]]:
    yield "a varint without end", _NONE, b"\xff" * 1000
    yield "a group", _NONE, b"\x0b\x0c"
    yield "a length beyond the end", _NONE, varint(1 << 3 | 2) + varint(1 << 31) + b"x"
    yield "codec 99", 99, b"\0"
    yield "a length of 2^63", _NONE, varint(1 << 3 | 2) + varint(1 << 63)
    yield "gzip that is cut", _GZIP, gzip.compress(bytes(100_000))[:50]
    yield "zlib in place of gzip", _GZIP, zlib.compress(b"x" * 100)
    deep = b"x"
    for _ in range(5000):
        deep = nested(1, deep)
    yield "5,000 levels", _NONE, deep
    name = f"{_PREFIX}{{}}\n# TYPE x gauge\nx 1"
    yield "a name with a line of its own", _NONE, payload(gauge(name, point(1)))
    labels = {'k"}\n': '"} 1\nforged 1\n'}
    yield "a label that forges a line", _NONE, payload(gauge(_PREFIX, point(1.0, **labels)))
    yield "no number", _NONE, payload(gauge(_PREFIX + "nan", point(float("nan"))))
    yield "no UTF-8", _NONE, payload(gauge(_PREFIX, nested(7, attribute("k", "v"))[:-1] + b"\xff"))


def _large(one: Round) -> Iterator[tuple[str, int, bytes]]:
    yield "500,000 empty elements", _NONE, b"\x0a\0" * 500_000
    many = [gauge(f"{_PREFIX}{number}", point(1)) for number in range(10_000)]
    yield "10,000 series", _NONE, payload(*many)
    wide = {f"k{number}": "v" * 1000 for number in range(500)}
    yield "500 labels of a kilobyte", _NONE, payload(gauge(_PREFIX, point(1, **wide)))
    for name in BOMBS if one.whole else ("zstd",):
        codec, make = BOMBS[name]
        yield f"bomb: {name}", codec, make()[:1_000_000]
