"""Which clients are asked for what."""

from __future__ import annotations

import pytest

from twisted_broker.image.metadata_image import CLIENT_METRICS_RESOURCE, TOPIC_RESOURCE
from twisted_broker.telemetry.subscriptions import DEFAULT_INTERVAL_MS, Requested, Subscriptions
from twisted_broker.wire.schema import run_whole

CLIENT = {
    "client_instance_id": "AAAAAAAAAAAAAAAAAAAAAg",
    "client_id": "app-1",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.1",
    "client_source_address": "127.0.0.1",
    "client_source_port": "4711",
}


def requested(*resources: dict[str, str], **properties: str) -> Requested:
    configs = {
        (CLIENT_METRICS_RESOURCE, f"s{number}"): {
            key.replace("_", "."): value for key, value in values.items()
        }
        for number, values in enumerate(resources)
    }
    found: Requested = run_whole(Subscriptions(1, configs).requested(CLIENT | properties))
    return found


@pytest.mark.parametrize(
    ("resources", "metrics", "interval_ms"),
    [
        ((), (), DEFAULT_INTERVAL_MS),
        (({"metrics": "b,a"},), ("a", "b"), DEFAULT_INTERVAL_MS),
        (({"metrics": "a", "interval_ms": "5000"}, {"metrics": "a,c"}), ("a", "c"), 5000),
        (({"metrics": "a"}, {"metrics": "*,b"}), ("*",), DEFAULT_INTERVAL_MS),
        (({"metrics": "a", "interval_ms": "3600000"},), ("a",), DEFAULT_INTERVAL_MS),
        (({"interval_ms": "100"},), (), 100),
        (({"metrics": "a", "interval_ms": "nothing"},), (), DEFAULT_INTERVAL_MS),
    ],
)
def test_a_client_is_asked_for_the_union_at_the_smallest_interval(
    resources: tuple[dict[str, str], ...], metrics: tuple[str, ...], interval_ms: int
) -> None:
    """GN 5.1, 5.3."""
    assert requested(*resources) == Requested(metrics, interval_ms)


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("client_id=app-.*", True),
        ("client_id=app", False),
        (" client_id = app-[0-9] ", True),
        ("client_id=app-.*,client_software_name=librdkafka", False),
        ("client_id=app-.*,client_software_name=apache.*", True),
        ("client_source_port=47..,client_source_address=127.*", True),
        ("client_instance_id=AAAAAAAAAAAAAAAAAAAAAg,client_software_version=4.*", True),
        ("client_id=(?<=a)b", False),
    ],
)
def test_every_pattern_must_match_the_whole_property(match: str, matches: bool) -> None:
    """GN 5.1. The last one is no pattern of ours."""
    assert requested({"metrics": "a", "match": match}).metrics == (("a",) if matches else ())


def test_other_resources_are_no_subscriptions() -> None:
    assert not len(Subscriptions(1, {(TOPIC_RESOURCE, "t"): {"metrics": "a"}}))


def test_the_subscription_id_changes_with_metrics_interval_and_client_only() -> None:
    """GN 5.4: and is the same on every broker."""
    one, other = b"\1" * 16, b"\2" * 16
    ids = {
        Requested(metrics, interval_ms).subscription_id(client)
        for metrics in (("a",), ("b",))
        for interval_ms in (100, 200)
        for client in (one, other)
    }
    assert len(ids) == 8 and all(-(1 << 31) <= each < 1 << 31 for each in ids)
    assert Requested(("a",), 100).subscription_id(one) in ids


def test_many_subscriptions_are_matched_in_steps() -> None:
    resources = [{"metrics": f"m{n}", "match": "client_id=app.*"} for n in range(200)]
    configs = {(CLIENT_METRICS_RESOURCE, str(n)): each for n, each in enumerate(resources)}
    subscriptions = Subscriptions(1, configs)
    assert sum(1 for _ in subscriptions.requested(CLIENT)) >= 200  # each compiles its pattern
    assert 4 <= sum(1 for _ in subscriptions.requested(CLIENT)) < 20
    first, second = (run_whole(subscriptions.requested(CLIENT)) for _ in range(2))
    assert first is second and len(first.metrics) == 200
