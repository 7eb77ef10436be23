"""`replog unregister`: takes a broker that is gone for good out of a cluster's metadata.

Owns the requests of it.

1. A broker that runs is refused: it would register again at once. One that still has replicas is
   refused without `--force`.
2. The exit status is 0 when the broker is unregistered, 1 when the cluster refuses or cannot be
   reached; one line says why.

Source: Kafka's `kafka-cluster unregister` (KIP-500), which checks nothing. Not here: moving
replicas (clients' tools do it), the decision (`cluster/broker_registry.py`), TLS and SASL
(`cli/command_config.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from twisted_broker.cli.number_types import WholeNumber
from twisted_broker.java_numbers import is_digits
from twisted_broker.wire.errors import BrokerError, error_of

if TYPE_CHECKING:
    from twisted_broker.consumer.cluster_client import ClusterClient
    from twisted_broker.interfaces import Runtime

# Above the 30 s that a broker waits for its controller.
_TIMEOUT_MS = 40_000
_NAMED = 5


@click.command()
@click.option(
    "--bootstrap-server",
    "-b",
    metavar="HOST:PORT",
    required=True,
    help="One of the brokers that are left.",
)
@click.option(
    "--command-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default=None,
    help="TLS and SASL: properties of a Java client.",
)
@click.option("--id", "broker_id", type=WholeNumber(min=0), required=True, help="Its node.id.")
@click.option(
    "--force", is_flag=True, help="Also where it has replicas, which are lost if no other has them."
)
def unregister(
    bootstrap_server: str, command_config: Path | None, broker_id: int, force: bool
) -> None:
    """Unregister a broker that is gone for good, as Kafka's kafka-cluster does.

    Move its replicas to other brokers and stop it before. A broker that only restarts needs no
    such thing; one that is started again after this registers anew.
    """
    from twisted_broker.cli.command_config import client_security, run_in_reactor
    from twisted_broker.consumer.cluster_client import ClusterClient
    from twisted_broker.consumer.consumer_config import ConsumerConfig
    from twisted_broker.consumer.errors import BrokersUnreachable, InvalidSetting

    host, _, port = bootstrap_server.rpartition(":")
    if not host or not is_digits(port):
        raise click.UsageError(f"--bootstrap-server takes HOST:PORT, not {bootstrap_server!r}")
    option = "--command-config"
    settings = {
        "bootstrap.servers": bootstrap_server,
        "client.id": "replog-unregister",
        "request.timeout.ms": _TIMEOUT_MS,
        **client_security(command_config, option).properties,
    }

    async def work(runtime: Runtime) -> str:
        client = ClusterClient(runtime, ConsumerConfig(settings), option)
        try:
            return await _refusal(client, broker_id, force) or await _unregister(client, broker_id)
        finally:
            client.close()

    try:
        refusal = run_in_reactor(work)
    except InvalidSetting as error:
        raise click.UsageError(str(error)) from None
    except (BrokersUnreachable, BrokerError) as error:
        refusal = str(error)
    if refusal:
        click.echo(refusal, err=True)
        sys.exit(1)
    click.echo(f"broker {broker_id} is unregistered")


async def _refusal(client: ClusterClient, broker_id: int, force: bool) -> str:
    """Why the broker must not be unregistered; "" when it may."""
    from twisted_broker.wire.messages.cluster import DescribeClusterRequest
    from twisted_broker.wire.messages.metadata import MetadataRequest

    described = await client.send_to_any(DescribeClusterRequest(), 0)
    if described.error_code:
        return _words(described.error_code, described.error_message)
    if any(each.broker_id == broker_id for each in described.brokers):
        return f"broker {broker_id} is running, and would register again: stop it first"
    if force:
        return ""
    metadata = await client.send_to_any(MetadataRequest(topics=None), 9)
    held = [
        f"{topic.name}-{partition.partition_index}"
        for topic in metadata.topics
        for partition in topic.partitions
        if broker_id in partition.replica_nodes
    ]
    if not held:
        return ""
    named = ", ".join(held[:_NAMED]) + (", .." if len(held) > _NAMED else "")
    return (
        f"broker {broker_id} has {len(held)} replicas ({named}): reassign them to other brokers "
        "first, or give --force"
    )


async def _unregister(client: ClusterClient, broker_id: int) -> str:
    from twisted_broker.wire.messages.cluster import UnregisterBrokerRequest

    answer = await client.send_to_any(UnregisterBrokerRequest(broker_id=broker_id), 0)
    return _words(answer.error_code, answer.error_message) if answer.error_code else ""


def _words(code: int, message: str | None) -> str:
    return f"the cluster refuses: {BrokerError(error_of(code), message)}"
