"""`replog cluster`: a cluster for tests of any language.

Owns the command, and how long the cluster lives.

1. One line of JSON says where it is, once clients are served; then nothing more.
2. It ends at the end of its standard input, when the program that started it is gone, however that
   ended; with `--ttl` after that time, whatever becomes of the input.

Ring 2. Source: our own. Not here: HTTP (`http_api.py`).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from twisted_broker.cli.number_types import WholeNumber
from twisted_broker.testing.handles import in_seconds

_LOOPBACK = "127.0.0.1"


def _pairs(what: str, sign: str, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for each in given:
        name, separator, value = each.partition(sign)
        if not separator:
            raise click.UsageError(f"{what} takes NAME{sign}VALUE, not {each!r}")
        found[name] = value
    return found


class _Verbs(click.Group):
    """The verbs of a cluster that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from twisted_broker.testing.served.verbs import VERBS

        return sorted(name.replace("_", "-") for name in VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from twisted_broker.testing.served.verb_commands import verb_command

        return verb_command(cmd_name)


@click.group(cls=_Verbs, invoke_without_command=True, subcommand_metavar="[VERB ..]")
@click.option("--brokers", type=WholeNumber(1), default=1, show_default=True, help="How many.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="One of Kafka's.")
@click.option("--topic", "topics", multiple=True, metavar="NAME:PARTITIONS", help="Made at first.")
@click.option("--data", type=click.Path(file_okay=False), help="A directory; memory without.")
@click.option("--port", type=WholeNumber(0), default=0, help="Of the HTTP API; a free one without.")
@click.option("--ttl", help="It lives so long (10m), not until its input ends.")
@click.pass_context
def cluster(
    context: click.Context,
    brokers: int,
    settings: tuple[str, ...],
    topics: tuple[str, ...],
    data: str | None,
    port: int,
    ttl: str | None,
) -> None:
    """A Kafka cluster for tests, with an HTTP API by which it is struck (docs/TESTING.md).

    Prints one line of JSON, where it is, and ends with its standard input. A VERB asks one that
    runs, whose url KAFKA_TEST_URL or --url names.
    """
    if context.invoked_subcommand is not None:
        return
    from twisted_broker.testing.cluster import start_arguments
    from twisted_broker.testing.template_client import ClusterError, template

    try:
        seconds = None if ttl is None else in_seconds(ttl)
        counts = {name: int(count) for name, count in _pairs("--topic", ":", topics).items()}
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    arguments = start_arguments(brokers, _pairs("--set", "=", settings), counts, data)
    try:
        connection = template().fork()
        started = connection.call("start", **arguments)
    except ClusterError as error:
        raise click.ClickException(str(error)) from None
    _serve(connection, started, port, seconds, data is not None)


def _serve(
    connection: Any, started: dict[str, Any], port: int, seconds: float | None, keeps: bool
) -> None:
    from twisted.internet import reactor
    from twisted.internet.error import CannotListenError
    from twisted.internet.stdio import StandardIO
    from twisted.web.server import Site

    from twisted_broker.testing.served.calls import Calls
    from twisted_broker.testing.served.http_api import Api

    world: Any = reactor
    status = 0

    def end(found: int = 0) -> None:
        nonlocal status
        if world.running:
            status = found
            world.stop()

    where = {"bootstrap": started["bootstrap"], "brokers": started["brokers"]}
    calls = Calls(world, connection, lambda: end(1))
    site = Site(Api(world, calls, where))
    site.noisy = False
    try:
        listening = world.listenTCP(port, site, interface=_LOOPBACK)
    except CannotListenError as error:
        raise click.ClickException(f"port {port}: {error.socketError}") from None
    where["url"] = f"http://{_LOOPBACK}:{listening.getHost().port}"
    if keeps:  # its files are as after a clean shutdown
        world.addSystemEventTrigger("before", "shutdown", calls.call, "stop", {})
    if seconds is None:
        StandardIO(_Input(end))
    else:
        world.callLater(seconds, end)
    sys.__stdout__.write(json.dumps(where) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]
    world.run()
    # Whatever is in flight ends with it; the cluster's process, too.
    os._exit(status)


def _Input(end: Any) -> Any:
    from twisted.internet.protocol import Protocol

    class Input(Protocol):
        def connectionLost(self, reason: Any = None) -> None:
            end()

    return Input()
