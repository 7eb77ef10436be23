"""An address that cannot be bound is refused in one line: the setting, why, and what to change."""

from __future__ import annotations

from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL
from socket import EAI_NONAME, gaierror
from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, fail
from twisted.internet.error import CannotListenError

from twisted_broker.net.listeners import ConfiguredListener, OpenListeners


class Refusing:
    """A network in which this goes wrong with every address."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def listen(self, host: str, port: int, factory: Any) -> Deferred[Any]:
        return fail(CannotListenError(host, port, self._error))


def refusal(network: Any, endpoint: ConfiguredListener, is_controller: bool) -> str:
    runtime: Any = SimpleNamespace(network=network)
    problems: list[Any] = []
    ensureDeferred(OpenListeners(runtime).open(endpoint, None, endpoint, is_controller)).addErrback(
        problems.append
    )
    problems[0].trap(CannotListenError)
    return str(problems[0].value)


@pytest.mark.parametrize(
    ("error", "is_controller", "remedy"),
    [
        (
            OSError(EADDRNOTAVAIL, "not here"),
            False,
            "an address of this machine in listeners or with --host",
        ),
        (
            gaierror(EAI_NONAME, "not known"),
            False,
            "an address of this machine in listeners or with --host",
        ),
        (
            OSError(EADDRINUSE, "in use"),
            False,
            "a free port (0: any) in listeners or with --port",
        ),
        (
            OSError(EACCES, "not allowed"),
            False,
            "a port that this user may open (as a rule 1024 or more) in listeners or with --port",
        ),
        (OSError(EADDRNOTAVAIL, "not here"), True, "an address of this machine in listeners"),
    ],
    ids=[
        "no address of ours",
        "no such name",
        "in use",
        "not allowed",
        "of the controller: --host is not about it",
    ],
)
def test_the_line_names_the_setting_and_the_remedy(
    error: OSError, is_controller: bool, remedy: str
) -> None:
    line = refusal(Refusing(error), ConfiguredListener("INSIDE", "h", 9092), is_controller)
    assert (
        line
        == f"listeners: INSIDE://h:9092 cannot be listened on ({error.strerror}): give {remedy}"
    )
