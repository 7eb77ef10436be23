"""`replog mirror`: topics of any Kafka cluster, copied into one of ours as they are.

Owns the options, the terminal, the metrics' port, and the exit status.

1. The exit status is 0 after SIGINT, SIGTERM, or with `--once` when all is there; 1 when something
   ended it, with one line on standard error; 2 for wrong arguments.
2. Progress goes to standard error: a table on a terminal, else a line each minute.
3. The metrics' port is on 127.0.0.1 only.

Ring 2. Source: none, ours; docs/MIRROR.md. Not here: what is done (`mirror/mirror.py`).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import click

from twisted_broker.cli.number_types import Number, WholeNumber

_LINE_SECONDS, _TABLE_SECONDS, _LOOK_SECONDS = 60.0, 0.5, 0.2
_LONGEST_REFRESH = 7 * 86400.0


@click.command()
@click.option(
    "--from",
    "source",
    metavar="HOST:PORT",
    required=True,
    help="A broker of the source, Apache Kafka or ours; several with commas.",
)
@click.option(
    "--to",
    "target",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    show_default=True,
    help="A broker of the target, which must be ours.",
)
@click.option(
    "--from-config",
    "source_config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default=None,
    help="TLS and SASL to the source: properties of a Java client.",
)
@click.option(
    "--to-config",
    "target_config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default=None,
    help="The same to the target.",
)
@click.option(
    "--topics", metavar="REGEX", required=True, help="Which topics; the whole name must match."
)
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("replog-mirror"),
    show_default=True,
    help="Directory for the source's leader epochs.",
)
@click.option(
    "--replication-factor",
    type=WholeNumber(min=1),
    default=None,
    help="Of topics made in the target; its default if not given.",
)
@click.option(
    "--follow-loss",
    is_flag=True,
    help="When the source lost records that were mirrored, drop them in the target, too.",
)
@click.option("--once", is_flag=True, help="End when everything that is there now is mirrored.")
@click.option(
    "--metrics-port",
    type=WholeNumber(0, 65535),
    default=None,
    help="Serve Prometheus metrics on this port of 127.0.0.1; 0 takes a free one.",
)
@click.option(
    "--refresh",
    type=Number(0.1, _LONGEST_REFRESH),
    default=10.0,
    show_default=True,
    help="Seconds between two looks at topics, settings and partition counts.",
)
def mirror(
    source: str,
    target: str,
    source_config: Path | None,
    target_config: Path | None,
    topics: str,
    state: Path,
    replication_factor: int | None,
    follow_loss: bool,
    once: bool,
    metrics_port: int | None,
    refresh: float,
) -> None:
    """Copy topics of any Kafka cluster into one of ours, with their offsets and bytes.

    Batches travel as they are; settings and partition counts follow. It runs until it is stopped,
    and goes on where it was when it is started again.
    """
    from twisted_broker.cli.command_config import client_security
    from twisted_broker.consumer.errors import InvalidSetting
    from twisted_broker.mirror.errors import MirrorError
    from twisted_broker.mirror.mirror import FROM_CONFIG, TO_CONFIG, MirrorOptions

    options = MirrorOptions(
        source,
        target,
        topics,
        state.resolve().as_posix(),
        -1 if replication_factor is None else replication_factor,
        int(refresh * 1000),
        follow_loss=follow_loss,
        source_client=client_security(source_config, FROM_CONFIG),
        target_client=client_security(target_config, TO_CONFIG),
    )
    try:
        run = _Run(options, once, metrics_port)
    except (InvalidSetting, MirrorError) as error:
        raise click.UsageError(str(error)) from None
    refusal = run.run()
    if refusal:
        click.echo(refusal, err=True)
        sys.exit(1)


class _Run:
    """One process' mirror. Raises InvalidSetting, MirrorError."""

    def __init__(self, options: Any, once: bool, metrics_port: int | None) -> None:
        from twisted.internet import reactor

        from twisted_broker.interfaces import Runtime
        from twisted_broker.log.disk_worker import DiskThread
        from twisted_broker.log.filesystem import OsFileSystem
        from twisted_broker.mirror.mirror import Mirror
        from twisted_broker.net.network import ReactorNetwork
        from twisted_broker.reactor_watch import ReactorWatch, WatchedClock

        self._reactor: Any = reactor
        self._once, self._metrics_port = once, metrics_port
        self._refusal = ""
        self._stopping = False
        self._terminal: Any = None
        self._said_at = time.monotonic()
        watch = ReactorWatch(0)
        runtime = Runtime(
            clock=WatchedClock(self._reactor, watch),
            wall_ms=lambda: time.time_ns() // 1_000_000,
            network=ReactorNetwork(self._reactor),
            files=OsFileSystem(),
            disk=lambda directory: DiskThread(
                self._reactor.callFromThread, f"disk {directory}", watch
            ),
            random=Random(),
        )
        self._mirror = Mirror(runtime, options, self._print)

    def run(self) -> str:
        """Until it ends; why it did, "" where it was stopped."""
        reactor = self._reactor
        self._mirror.ended.addCallbacks(lambda _: None, self._failed)
        self._mirror.ended.addBoth(lambda _: self._ended())
        reactor.addSystemEventTrigger("before", "shutdown", self._shut_down)
        reactor.callWhenRunning(self._start)
        with _live() as self._terminal:
            reactor.run()
        return self._refusal

    def _shut_down(self) -> None:
        self._stopping = True
        self._mirror.stop()

    def _ended(self) -> None:
        if self._reactor.running and not self._stopping:
            self._reactor.stop()

    def _start(self) -> None:
        if self._metrics_port is not None:
            from twisted.internet.error import CannotListenError

            try:
                port = self._reactor.listenTCP(
                    self._metrics_port, _site(self._mirror), interface="127.0.0.1"
                )
            except CannotListenError as error:
                self._refusal = f"--metrics-port {self._metrics_port}: {error}"
                self._reactor.callLater(0, self._mirror.stop)
                return
            self._print(f"metrics at http://127.0.0.1:{port.getHost().port}/metrics")
        self._mirror.start()
        self._look()

    def _failed(self, failure: Any) -> None:
        from twisted_broker.mirror.errors import MirrorError

        known = isinstance(failure.value, MirrorError)
        self._refusal = str(failure.value) if known else failure.getTraceback()

    def _look(self) -> None:
        """Shows how far it is."""
        if self._mirror.ended.called:
            return
        if self._terminal is not None:
            self._terminal.update(_table(self._mirror.progress()), refresh=True)
        elif time.monotonic() - self._said_at >= _LINE_SECONDS:
            self._print_progress()
        if self._once and self._mirror.has_caught_up:
            self._print_progress()
            self._mirror.stop()
            return
        self._reactor.callLater(
            _LOOK_SECONDS if self._terminal is None else _TABLE_SECONDS, self._look
        )

    def _print_progress(self) -> None:
        from twisted_broker.mirror.metrics import summary

        self._said_at = time.monotonic()
        self._print(summary(self._mirror.progress()))

    def _print(self, line: str) -> None:
        if self._terminal is not None:
            self._terminal.console.print(line, markup=False, highlight=False)
        else:
            click.echo(line, err=True)


def _live() -> Any:
    """A place on the terminal that is written anew; nothing where there is none."""
    import contextlib

    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True), auto_refresh=False, transient=True)


def _table(progress: Any) -> Any:
    from rich.table import Table

    from twisted_broker.mirror.metrics import rows, summary

    made = Table("partition", "mirrored up to", "source's end", "lag", caption=summary(progress))
    for row in rows(progress):
        made.add_row(*row)
    return made


def _site(running: Any) -> Any:
    """`/metrics`."""
    from twisted.web.resource import Resource
    from twisted.web.server import Site

    from twisted_broker.mirror.metrics import metrics_text
    from twisted_broker.status.metric_text import CONTENT_TYPE

    class Metrics(Resource):
        def render_GET(self, request: Any) -> bytes:
            request.setHeader("content-type", CONTENT_TYPE)
            return metrics_text(running.progress())

    root: Any = Resource()
    made: Any = Metrics
    root.putChild(b"metrics", made())
    return Site(root)
