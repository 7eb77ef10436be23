"""`--command-config FILE`: how the commands of `replog` reach a secured cluster.

Owns the reading of the file, and one client's run in a reactor of its own.

1. The file is that of a Java client, as all of Kafka's tools take it. What is of no use here is
   named once, and what cannot work is one line with exit status 2, before anything is sent.

Ring 2. Source: Kafka's `--command-config`. Not here: what the properties mean
(`security/client_security.py`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from twisted_broker.interfaces import Runtime
from twisted_broker.security.client_security import (
    PLAINTEXT,
    ClientSecurity,
    is_security,
    not_used,
)
from twisted_broker.settings import ConfigError, PropertiesError, client_properties

T = TypeVar("T")


def client_security(path: Path | None, option: str) -> ClientSecurity:
    """Of the file that `option` names; None: plain connections. Raises click.UsageError."""
    if path is None:
        return PLAINTEXT
    try:
        properties = client_properties(path.read_bytes())
        unused = not_used(properties)
        found = ClientSecurity({name: properties[name] for name in properties if is_security(name)})
    except OSError as error:
        raise click.UsageError(f"{option} {path}: {error.strerror or error}") from None
    except (PropertiesError, ConfigError) as error:
        raise click.UsageError(f"{option} {path}: {error}") from None
    if unused:
        names = ", ".join(unused)
        click.echo(f"{option} {path}: only TLS and SASL are read, not {names}", err=True)
    return found


def run_in_reactor(work: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
    """The result of `work`, or what it raised. The reactor is a new one, for this alone. Raises
    click.Abort after Ctrl-C.
    """
    from twisted.internet.defer import ensureDeferred
    from twisted.internet.selectreactor import SelectReactor
    from twisted.python.failure import Failure

    from twisted_broker.consumer.reactor_runtime import reactor_runtime

    reactor: Any = SelectReactor()
    outcome: list[Any] = []

    def over(result: Any) -> None:
        outcome.append(result)
        reactor.stop()

    def interrupted(*_: Any) -> None:
        reactor.callFromThread(reactor.stop)

    reactor.callWhenRunning(lambda: ensureDeferred(work(reactor_runtime(reactor))).addBoth(over))
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, interrupted) if is_main else None
    try:
        reactor.run(installSignalHandlers=False)
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)
    if not outcome:
        raise click.Abort
    if isinstance(outcome[0], Failure):
        outcome[0].raiseException()
    result: T = outcome[0]
    return result
