"""`replog mirror`: wrong arguments, and addresses where nothing is, get one line; how it ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from twisted_broker.cli.main import main
from twisted_broker.cli.mirror import _Run
from twisted_broker.mirror.mirror import MirrorOptions

REPLOG = Path(sys.executable).parent / "replog"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--from", "h:1", "--topics", "("], "--topics (: no regular expression"),
        (["--from", "nowhere", "--topics", "t"], "--from nowhere: must be a list of HOST:PORT"),
        (
            ["--from", "h:1", "--to", "h:x", "--topics", "t"],
            "--to h:x: must be a list",
        ),
        (["--topics", "t"], "--from"),
        (["--from", "h:1"], "--topics"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str, tmp_path: Path) -> None:
    state = ["--state", str(tmp_path / "state")]
    done = CliRunner().invoke(main, ["mirror", *arguments, *state])
    assert done.exit_code == 2 and words in done.output
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("option", ["--from-config", "--to-config"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("security.protocol=TLS\n", ": setting security.protocol='TLS' is refused"),
        (
            "security.protocol=SSL\nssl.truststore.location=/none\n",
            ": setting ssl.truststore.location='/none' is refused: it cannot be read",
        ),
    ],
)
def test_properties_that_cannot_work(option: str, text: str, words: str, tmp_path: Path) -> None:
    """Exit status 2, and the option is named: there are two files."""
    file = tmp_path / "client.properties"
    file.write_text(text)
    arguments = ["--from", "h:1", "--topics", "t", "--state", str(tmp_path / "s")]
    done = CliRunner().invoke(main, ["mirror", *arguments, option, str(file)])
    assert done.exit_code == 2 and words in done.output
    assert f"Error: {option}" in done.output and not (tmp_path / "s").exists()


def test_no_broker_at_the_address(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    done = subprocess.run(
        [REPLOG, "mirror", "--from", address, "--to", address, "--topics", "t", "--state", "s"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and f"--to {address} answered" in done.stderr


class StoppingReactor:
    """Runs `work`, as it would between its start and its end, and counts who stops it."""

    running = True

    def __init__(self, work: Callable[[], None]) -> None:
        self.work, self.stops = work, 0
        self.triggers: list[Callable[[], object]] = []

    def addSystemEventTrigger(self, phase: str, event: str, call: Callable[[], object]) -> None:
        assert (phase, event) == ("before", "shutdown")
        self.triggers.append(call)

    def callWhenRunning(self, call: Callable[[], object]) -> None:
        """Nothing is mirrored here."""

    def run(self) -> None:
        self.work()

    def stop(self) -> None:
        self.stops += 1


@pytest.mark.parametrize("by_signal", [True, False])
def test_the_reactor_is_stopped_once(tmp_path: Path, by_signal: bool) -> None:
    """A signal stops it, and the mirror then; a mirror that ends stops it itself."""
    nowhere = "127.0.0.1:1"
    run = _Run(MirrorOptions(nowhere, nowhere, "t", str(tmp_path)), False, None)
    reactor: Any = None

    def work() -> None:
        if by_signal:
            for call in reactor.triggers:
                call()
        else:
            run._mirror.stop()

    reactor = run._reactor = StoppingReactor(work)
    assert run.run() == ""
    assert reactor.stops == (0 if by_signal else 1)
