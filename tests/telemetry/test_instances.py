"""When a client may ask and push, how long it is known, and what of its values is kept."""

from __future__ import annotations

import pytest

from tests.telemetry.clients import (
    INTERVAL_MS,
    INVALID,
    MOST_BYTES,
    TOO_EARLY,
    Clients,
    counter,
    level,
)
from twisted_broker.telemetry import instances
from twisted_broker.telemetry.instances import LEAST_EXPIRY_MS, is_reserved
from twisted_broker.telemetry.otlp import LONGEST

UNKNOWN, CODEC, LARGE = (
    "UNKNOWN_SUBSCRIPTION_ID",
    "UNSUPPORTED_COMPRESSION_TYPE",
    "TELEMETRY_TOO_LARGE",
)


def test_a_client_asks_once_in_an_interval() -> None:
    """GN 5.5."""
    clients = Clients()
    assert [clients.get(ms) for ms in (0, 1, INTERVAL_MS - 1, INTERVAL_MS, INTERVAL_MS + 1)] == [
        "NONE",
        TOO_EARLY,
        TOO_EARLY,
        "NONE",
        TOO_EARLY,
    ]
    assert clients.all.throttled == 3


@pytest.mark.parametrize(
    ("push", "answer", "then"),
    [
        ({"other_id": True}, UNKNOWN, "NONE"),
        ({"codec": 5}, CODEC, "NONE"),
        ({"codec": -1}, CODEC, "NONE"),
        ({"size": MOST_BYTES + 1}, LARGE, TOO_EARLY),
        ({}, "NONE", TOO_EARLY),
    ],
)
def test_it_asks_again_at_once_after_a_push_that_did_not_fit(
    push: dict[str, int], answer: str, then: str
) -> None:
    """GN 5.5: after these two errors only."""
    clients = Clients()
    clients.get(0)
    assert (clients.push(1, **push), clients.get(2)) == (answer, then)
    assert clients.get(3) == TOO_EARLY, "once"


def test_one_push_right_after_the_subscription_then_one_in_an_interval() -> None:
    """GN 5.6."""
    clients = Clients()
    clients.get(0)
    times = (1, 2, INTERVAL_MS, INTERVAL_MS + 1)
    assert [clients.push(ms) for ms in times] == ["NONE", TOO_EARLY, TOO_EARLY, "NONE"]


def test_the_last_push_may_come_at_any_time_and_none_behind_it() -> None:
    """GN 5.6: as Kafka forgets it with a refused request."""
    clients = Clients()
    clients.get(0)
    assert clients.push(1) == "NONE"
    assert clients.push(2, terminating=True) == "NONE"
    assert clients.push(INTERVAL_MS + 1) == INVALID
    assert clients.push(INTERVAL_MS + 2) == "NONE"


def test_errors_of_a_push_come_in_order() -> None:
    """GN 5.6: each with everything that would be wrong behind it."""
    clients = Clients()
    clients.get(0)
    wrong = {"other_id": True, "codec": 9, "size": MOST_BYTES + 1}
    assert clients.push(0.5, **wrong, terminating=True) == UNKNOWN
    assert clients.push(1, **wrong) == INVALID
    assert clients.push(2, **wrong) == TOO_EARLY
    assert clients.push(INTERVAL_MS + 1, **wrong) == UNKNOWN
    assert clients.push(2 * INTERVAL_MS + 1, codec=9, size=MOST_BYTES + 1) == CODEC
    assert clients.push(3 * INTERVAL_MS + 1, size=MOST_BYTES + 1) == LARGE
    assert clients.push(4 * INTERVAL_MS + 1, codec=4, size=MOST_BYTES) == "NONE"
    assert (clients.all.unknown_subscriptions, clients.all.throttled) == (2, 1)


def test_changed_subscriptions_make_the_client_new() -> None:
    """GN 5.8: neither throttled nor terminating any more, and its values are gone."""
    clients = Clients()
    clients.get(0)
    clients.push(1, terminating=True)
    clients.take(5, level("a", 1))
    clients.version = 2
    assert (clients.get(2), clients.push(3)) == ("NONE", "NONE")
    assert clients.shown() == {} and clients.all.series_in_all == 0


@pytest.mark.parametrize(("interval_ms", "lives_ms"), [(1000, LEAST_EXPIRY_MS), (50_000, 150_000)])
def test_a_silent_client_goes(interval_ms: int, lives_ms: int) -> None:
    """GN 5.8: each request of it puts that off."""
    clients = Clients(interval_ms)
    first = clients.instance(5, 0)
    assert clients.instance(5, lives_ms - 1) is first
    assert clients.instance(5, 2 * lives_ms - 2) is first
    assert clients.instance(5, 3 * lives_ms - 2) is not first
    clients.all.expire(9 * lives_ms)
    assert len(clients.all) == 0


def test_clients_go_with_the_connection_they_were_met_on() -> None:
    """GN 5.8."""
    clients = Clients()
    for number, connection in ((5, "c"), (6, "c"), (7, "d")):
        clients.instance(number, 0, connection)
        clients.take(number, level("a", 1))
    clients.all.connection_lost("c")
    clients.all.connection_lost("c")
    assert clients.shown() == {"client-7 client_a": 1} and len(clients.all) == 1
    assert clients.all.series_in_all == 1


def test_the_least_recently_used_client_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """GN 5.8."""
    monkeypatch.setattr(instances, "MOST_INSTANCES", 3)
    clients = Clients()
    for number in (5, 6, 7):
        clients.take(number, level("a", 1))
    clients.instance(5, 1)
    clients.instance(8, 2)
    assert [name.split()[0] for name in clients.shown()] == ["client-7", "client-5"]


def test_many_clients_leave_nothing_behind() -> None:
    """GN 6.30."""
    clients = Clients()
    for number in range(instances.MOST_INSTANCES + 100):
        clients.instance(2 + number, 0, f"connection {number % 100}")
    assert len(clients.all) == instances.MOST_INSTANCES
    clients.all.expire(LEAST_EXPIRY_MS)
    assert len(clients.all) == 0 and not clients.all._of_connection


def test_deltas_are_added_up_and_totals_replace() -> None:
    clients = Clients()
    for _ in range(2):
        clients.take(5, counter("a.total", 3), counter("b.total", 3, is_delta=False))
        clients.take(5, level("g", 3), level("up.down", -3, is_delta=True))
    assert clients.shown() == {
        "client-5 client_a_total": 6,
        "client-5 client_b_total": 3,
        "client-5 client_g": 3,
        "client-5 client_up_down": -6,
    }


def test_no_delta_makes_a_counter_fall_or_lose_its_value() -> None:
    clients = Clients()
    for value in (5, -3, float("nan"), float("inf"), 1):
        clients.take(5, counter("a", value))
    assert clients.shown() == {"client-5 client_a": 6}


def test_names_and_labels_are_those_of_prometheus() -> None:
    """GN 5.10: none takes the place of the client's own."""
    clients = Clients()
    labels = {"node-id": "1", "node.id": "2", "client_id": "x", "__name__": "y", "9": "z", "": ""}
    clients.take(5, level('a.b"{}\n', 1, **labels))
    assert clients.shown() == {"client-5 client_a_b____ {'node_id': '1', 'name__': 'y'}": 1}


def test_series_of_a_client_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """GN 5.10: those that are there go on."""
    monkeypatch.setattr(instances, "MOST_SERIES", 2)
    clients = Clients()
    clients.take(5, *(level(f"m{number}", 1) for number in range(5)))
    clients.take(5, level("m0", 7))
    assert clients.shown() == {"client-5 client_m0": 7, "client-5 client_m1": 1}
    assert clients.all.left_out == 3


@pytest.mark.parametrize(("bound", "kept"), [("MOST_SERIES_IN_ALL", 2), ("MOST_CHARACTERS", 1)])
def test_series_of_all_clients_are_bounded(
    monkeypatch: pytest.MonkeyPatch, bound: str, kept: int
) -> None:
    """GN 5.10: and there is room again when a client goes."""
    monkeypatch.setattr(instances, bound, 2 if bound == "MOST_SERIES_IN_ALL" else 15)
    clients = Clients()
    for number in (5, 6, 7):
        clients.instance(number, 0, str(number))
        clients.take(number, level("name", 1))
    assert len(clients.shown()) == kept and clients.all.left_out == 3 - kept
    clients.all.connection_lost("5")
    clients.take(7, level("name", 1))
    assert "client-7 client_name" in clients.shown()


def test_what_a_client_says_of_itself_is_cut() -> None:
    clients = Clients()
    found = instances.ClientInstance(
        b"i" * 16, ("c" * 999, "s", "v"), clients.requested, 1, None, 0.0
    )
    assert found.client == ("c" * LONGEST, "s", "v")


def test_values_of_a_client_that_went_meanwhile_are_dropped() -> None:
    clients = Clients()
    instance = clients.instance(5, 0)
    clients.all.connection_lost("c")
    clients.all.take((5).to_bytes(16, "big"), instance, [level("a", 1)])
    assert not clients.shown() and not clients.all.series_in_all


@pytest.mark.parametrize("number", [0, 1, 2])
def test_two_ids_are_reserved(number: int) -> None:
    """GN 5.6."""
    assert is_reserved(number.to_bytes(16, "big")) == (number < 2)
