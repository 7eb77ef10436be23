"""The state behind the page of a test's cluster: all machines' own views, at one moment.

Owns `PageState`: the live state of all brokers, with machines and links beside.

Ring 2. Source: our own. Not here: partitions and groups (`status/live_state.py`), the page
(`status/live/page.html`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.status.live_state import LiveState, has_news
from twisted_broker.testing.live_network import LiveNetwork
from twisted_broker.testing.machine import Machine


class PageState:
    """Of a cluster. A process that went on from a snapshot is another one, with versions of its
    own.
    """

    def __init__(self, machines: Mapping[int, Machine], network: LiveNetwork) -> None:
        self._machines, self._network = machines, network
        self._live: LiveState | None = None

    def since(
        self, brokers: Iterable[KafkaServer], version: int, of: str, wall_ms: int
    ) -> dict[str, Any]:
        """`text`: as `LiveState.since`, in JSON; where that is, and whether it has news."""
        own = str(os.getpid())
        if self._live is None or self._live.of != own:
            self._live = LiveState(own)
        machines, network = self._machines, self._network
        serving = [
            each.parts
            for each in brokers
            if each.broker_server is not None and machines[each.config.node_id].is_on
        ]
        more = {
            "machines": [_machine(node, each, network) for node, each in machines.items()],
            "links": [_link(way, network) for way in sorted(_struck(network))],
        }
        for _ in self._live.look(serving, more, wall_ms):
            pass  # a test's cluster is small
        found = self._live.since(version, of, wall_ms)
        text = json.dumps(found)
        return {"at": [found["version"], own], "has_news": has_news(found), "text": text}


def _machine(node: int, machine: Machine, network: LiveNetwork) -> dict[str, Any]:
    state = "off" if not machine.is_on else "frozen" if machine.is_frozen else "runs"
    clients = sum(each.clock is machine.clock for each in network.tcp)
    return {"node": node, "name": machine.name, "state": state, "clients": clients}


def _struck(network: LiveNetwork) -> set[tuple[str, str]]:
    return {*network.blocked, *network.delays, *network.rates}


def _link(way: tuple[str, str], network: LiveNetwork) -> dict[str, Any]:
    return {
        "from": way[0],
        "to": way[1],
        "cut": way in network.blocked,
        "delay_seconds": network.delays.get(way, 0.0),
        "bytes_per_second": network.rates.get(way),
    }
