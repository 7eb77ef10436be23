"""What the page of a test's cluster shows: all machines' own views, at one moment.

Owns `page_state`. Each replica is as its own broker has it: what they do not agree on is seen.

Ring 2. Source: our own. Not here: the page (`served/page.html`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from twisted_broker.server.kafka_server import KafkaServer
from twisted_broker.testing.live_network import LiveNetwork
from twisted_broker.testing.machine import Machine


def page_state(
    brokers: Iterable[KafkaServer], machines: Mapping[int, Machine], network: LiveNetwork
) -> dict[str, Any]:
    """As JSON has it."""
    serving = [
        each for each in brokers if each.role is not None and machines[each.config.node_id].is_on
    ]
    return {
        "machines": [_machine(node, machine, network) for node, machine in machines.items()],
        "links": [_link(way, network) for way in sorted(_struck(network))],
        "partitions": _partitions(serving),
        "groups": [
            {
                "name": group.group_id,
                "state": group.state.value,
                "members": [each.client_id for each in group.members.values()],
                "coordinator": broker.config.node_id,
            }
            for broker in serving
            for shard in broker.role.groups.runtime.shards.values()  # type: ignore[union-attr]
            for group in [each.group for each in shard.groups.each_value()]
        ],
        "transactions": [
            {
                "id": each.transactional_id,
                "state": each.state.text,
                "producer": f"{each.producer_id}, epoch {each.producer_epoch}",
                "coordinator": broker.config.node_id,
            }
            for broker in serving
            for shard in broker.role.transactions.states.shards.values()  # type: ignore[union-attr]
            for each in shard.transactions.each_value()
        ],
        "waiting": [_waiting(each) for each in serving],
    }


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


def _partitions(brokers: list[KafkaServer]) -> list[dict[str, Any]]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for broker in brokers:
        assert broker.role is not None
        for name, own in broker.role.replica_manager.partitions.items():
            log = own.log
            if log is None:
                continue
            row = found.setdefault(
                (name.topic, name.partition),
                {"topic": name.topic, "partition": name.partition, "replicas": []},
            )
            known = broker.role.observer.image.topics_by_name.get(name.topic)
            at = None if known is None else known.partitions.get(name.partition)
            if at is not None and at.leader_epoch >= row.get("epoch", -1):
                row |= {"epoch": at.leader_epoch, "isr": sorted(at.isr), "leader": at.leader}
            row["replicas"].append(
                {
                    "broker": broker.config.node_id,
                    "leads": own.is_leader,
                    "epoch": own.leader_epoch,
                    "start": log.log_start_offset,
                    "high_watermark": log.high_watermark,
                    "stable": log.last_stable_offset,
                    "end": log.log_end_offset,
                }
            )
    # The cluster's own come last.
    return [found[key] for key in sorted(found, key=lambda each: (each[0][:2] == "__", each))]


def _waiting(broker: KafkaServer) -> dict[str, Any]:
    assert broker.role is not None
    replicas = broker.role.replica_manager
    return {
        "broker": broker.config.node_id,
        "produce": replicas.produce_purgatory.size,
        "fetch": replicas.fetch_purgatory.size,
        "delete_records": replicas.delete_records_purgatory.size,
    }
