"""Rates of new connections: who waits, who is refused, what bounds what is kept."""

from __future__ import annotations

import pytest

from twisted_broker.security.quota import connection_rates
from twisted_broker.security.quota.connection_rates import EXPIRY_MS, ConnectionRates

INT_MAX = 2**31 - 1


def test_without_a_limit_nothing_is_measured() -> None:
    rates = ConnectionRates()
    rates.set_limits(INT_MAX, {"A": INT_MAX})
    assert not rates.active
    assert rates.opened("A", "h", 0) == (0, 0) and not rates._by_address


def test_the_broker_and_the_listener_hold_accepting_back() -> None:
    rates = ConnectionRates(2, 1000)
    rates.set_limits(10, {"A": 5})
    assert rates.active
    # Two windows, the first of them empty: 10 and 5 connections are within.
    waits = [rates.opened("A", f"h{number}", 0)[0] for number in range(7)]
    assert waits == [0, 0, 0, 0, 0, 200, 400]
    waits = [rates.opened("B", "h", 0)[0] for _ in range(5)]
    assert waits == [0, 0, 0, 100, 200]
    assert rates.waited_ms == 900
    assert [rates.opened(name, "h", 5000)[0] for name in "AB"] == [0, 0]


def test_no_wait_is_longer_than_a_window() -> None:
    rates = ConnectionRates(11, 2000)
    rates.set_limits(1, {})
    assert max(rates.opened("A", "h", 0)[0] for _ in range(500)) == 2000


def test_the_listener_of_brokers_has_a_limit_of_its_own_only() -> None:
    rates = ConnectionRates(2, 1000)
    rates.protect("BROKERS")
    rates.set_limits(1, {})
    for _ in range(10):
        assert rates.opened("BROKERS", "h", 0) == (0, 0)
    assert rates.opened("CLIENTS", "h", 0) == (0, 0)
    rates.set_limits(1, {"BROKERS": 1})
    assert [rates.opened("BROKERS", "h", 0)[0] for _ in range(2)] == [0, 1000]


def test_an_address_above_its_rate_is_refused_and_costs_others_nothing() -> None:
    rates = ConnectionRates(2, 1000)
    rates.set_limits(10, {"A": 10})
    rates.set_ip_rate("10.0.0.1", 2)
    found = [rates.opened("A", "10.0.0.1", 0) for _ in range(20)]
    assert found[:2] == [(0, 0)] * 2
    assert found[2:] == [(0, 500)] * 18 and rates.refused == 18
    # Of the listener's ten, two are used.
    assert [rates.opened("A", "10.0.0.2", 0) for _ in range(8)] == [(0, 0)] * 8
    assert rates.opened("A", "10.0.0.2", 0)[0] > 0


def test_the_default_of_addresses_holds_for_those_without_their_own() -> None:
    rates = ConnectionRates(2, 1000)
    rates.set_ip_rate(None, 1)
    rates.set_ip_rate("0:0:0:0:0:0:0:1", 3)
    assert [rates.opened("A", "::1", 0)[1] for _ in range(4)] == [0, 0, 0, 333]
    assert [rates.opened("A", "10.0.0.1", 0)[1] for _ in range(2)] == [0, 1000]
    rates.set_ip_rate("::1", None)
    assert rates.opened("A", "::1", 0)[1] == 1000  # what was measured stays
    rates.set_ip_rate(None, None)
    assert not rates.active and not rates._by_address


def test_addresses_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_rates, "MOST_ADDRESSES", 3)
    rates = ConnectionRates()
    rates.set_ip_rate(None, 1)
    for number in range(10):
        rates.opened("A", f"10.0.0.{number}", 0)
    assert list(rates._by_address) == ["10.0.0.7", "10.0.0.8", "10.0.0.9"]
    rates.opened("A", "10.0.0.8", EXPIRY_MS - 1)
    rates.opened("A", "10.0.0.1", EXPIRY_MS)
    assert list(rates._by_address) == ["10.0.0.8", "10.0.0.1"]
