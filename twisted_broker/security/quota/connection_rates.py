"""How many connections may be opened in a second: of a broker, of each listener, from an address.

Owns `ConnectionRates`.

1. A connection that is above the rate of the broker or of its listener counts, and the listener
   accepts the next one later. The listener that other brokers use is not held back by the broker's
   rate where clients have another one.
2. A connection that is above the rate of its address does not count; it is to be closed, later: a
   client that comes again at once would cost as much as one that is served.
3. No wait is longer than one window.
4. Addresses are measured only while rates of addresses are set. Those that nobody used for an hour
   go; there are never more than `MOST_ADDRESSES`, and the one unused for the longest time goes
   first.

Source: Kafka's `ConnectionQuotas` (4.3.1); KIP-402, KIP-612. Not here: the sockets
(`net/connection_limits.py`, `net/transport.py`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from ipaddress import ip_address

from twisted_broker.security.quota.rate import Rate

MOST_ADDRESSES = 10_000
EXPIRY_MS = 3_600_000
_UNLIMITED = 2**31 - 1
"""Kafka's default of each of these settings."""


class ConnectionRates:
    """`samples` windows of `window_ms` each."""

    __slots__ = (
        "_by_address",
        "_by_listener",
        "_default_of_address",
        "_listener_limits",
        "_of_address",
        "_samples",
        "_total",
        "_window_ms",
        "active",
        "limit",
        "protected",
        "refused",
        "waited_ms",
    )

    def __init__(self, samples: int = 11, window_ms: int = 1000) -> None:
        self._samples, self._window_ms = samples, window_ms
        self.protected = ""
        self.limit = _UNLIMITED
        self._listener_limits: dict[str, int] = {}
        self._default_of_address: float | None = None
        self._of_address: dict[str, float] = {}
        self._total = self._rate()
        self._by_listener: dict[str, Rate] = {}
        self._by_address: OrderedDict[str, tuple[Rate, int]] = OrderedDict()
        self.active = False
        self.refused = self.waited_ms = 0
        """Since the start: connections above the rate of their address; for how long listeners
        accepted none.
        """

    def _rate(self) -> Rate:
        return Rate(self._samples, self._window_ms)

    def protect(self, listener: str) -> None:
        """The listener of other brokers, where clients have another one, or ""."""
        self.protected = listener

    def set_limits(self, limit: int, of_listeners: Mapping[str, int]) -> None:
        """Of the broker, and of the listeners that have one of their own."""
        self.limit = limit
        self._listener_limits = {
            name: value for name, value in of_listeners.items() if value < _UNLIMITED
        }
        self._note_active()

    def set_ip_rate(self, address: str | None, rate: float | None) -> None:
        """Of an address, or (None) of those that have none of their own; a None rate: no limit."""
        if address is None:
            self._default_of_address = rate
        else:
            name = _as_sockets_write_it(address)
            if rate is None:
                self._of_address.pop(name, None)
            else:
                self._of_address[name] = rate
        if self._default_of_address is None and not self._of_address:
            self._by_address.clear()
        self._note_active()

    def _note_active(self) -> None:
        self.active = (
            self.limit < _UNLIMITED
            or bool(self._listener_limits)
            or self._default_of_address is not None
            or bool(self._of_address)
        )

    def opened(self, listener: str, host: str, now_ms: int) -> tuple[int, int]:
        """For a new connection: for how many ms its listener is to accept no other; above 0, in how
        many ms it is to be closed.
        """
        refused_ms = self._of_host(host, now_ms)
        if refused_ms:
            self.refused += 1
            return 0, refused_ms
        waits = [0]
        is_protected = listener == self.protected
        if self.limit < _UNLIMITED and not is_protected:
            waits.append(self._recorded(self._total, self.limit, now_ms))
        own = self._listener_limits.get(listener)
        if own is not None:
            rate = self._by_listener.get(listener)
            if rate is None:
                rate = self._by_listener[listener] = self._rate()
            waits.append(self._recorded(rate, own, now_ms))
        self.waited_ms += max(waits)
        return max(waits), 0

    def _of_host(self, host: str, now_ms: int) -> int:
        bound = self._of_address.get(host, self._default_of_address)
        if bound is None:
            return 0
        known = self._by_address.pop(host, None)
        if known is None:
            self._make_room(now_ms)
        rate = self._rate() if known is None else known[0]
        self._by_address[host] = rate, now_ms
        wait_ms = self._recorded(rate, bound, now_ms)
        if wait_ms:
            rate.record(-1, now_ms)
        return wait_ms

    def _make_room(self, now_ms: int) -> None:
        while self._by_address:
            host, (_, used_ms) = next(iter(self._by_address.items()))
            if len(self._by_address) < MOST_ADDRESSES and now_ms - used_ms < EXPIRY_MS:
                return
            del self._by_address[host]

    def _recorded(self, rate: Rate, bound: float, now_ms: int) -> int:
        rate.record(1, now_ms)
        wait_ms = rate.throttle_ms(bound, now_ms) if bound > 0 else math.inf
        return int(min(wait_ms, self._window_ms))

    def rates(self, now_ms: int) -> tuple[float, dict[str, float]]:
        """Connections per second of the broker, of each listener that has a limit."""
        return self._total.measure(now_ms), {
            name: rate.measure(now_ms) for name, rate in self._by_listener.items()
        }


def _as_sockets_write_it(address: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:  # a name, from a controller that resolves it: no socket is called so
        return address
