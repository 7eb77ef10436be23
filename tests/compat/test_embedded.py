"""A broker inside other programs, with real sockets: those of `examples/embedded` as they stand,
and what is left with a reactor after a stop.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka import KafkaProducer
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from tests.compat.broker_process import TWISTD
from tests.compat.left_behind import used_and_stopped

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "embedded"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*arguments: object, cwd: Path) -> str:
    """What the program prints on its output; it may print no warning."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=cwd,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "never awaited" not in done.stderr and "Unhandled" not in done.stderr, done.stderr
    return done.stdout


def test_the_asyncio_program(tmp_path: Path) -> None:
    assert run(EXAMPLES / "asyncio_program.py", cwd=tmp_path) == "hello\n"


def test_the_twisted_program(tmp_path: Path) -> None:
    """Two nodes of one cluster in one process."""
    first, second, is_one = run(EXAMPLES / "twisted_program.py", "data", cwd=tmp_path).split()
    assert first != second and is_one == "True"
    clean = [tmp_path / "data" / node / ".kafka_cleanshutdown" for node in "12"]
    assert all(each.exists() for each in clean)


def application(directory: Path, port: int) -> list[str]:
    """Its command, with another port in it."""
    text = (EXAMPLES / "broker.tac").read_text()
    assert "port=9092" in text
    (directory / "broker.tac").write_text(text.replace("port=9092", f"port={port}"))
    return [sys.executable, str(TWISTD), "-n", "--pidfile=", "-y", "broker.tac"]


def test_the_service(tmp_path: Path) -> None:
    """`twistd -y broker.tac` serves, and SIGTERM is a clean shutdown."""
    with subprocess.Popen(
        application(tmp_path, 0), stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=ENVIRONMENT
    ) as process:
        said = line = ""
        while "ready on " not in line:
            line = process.stdout.readline()
            said += line
            assert line, said
        producer = KafkaProducer(bootstrap_servers=line.split()[-1])
        producer.send("letters", b"one").get(30)
        producer.close()
        process.send_signal(signal.SIGTERM)
        said += process.stdout.read()
    assert process.returncode == -signal.SIGTERM and "Traceback" not in said, said
    assert (tmp_path / "broker-data" / ".kafka_cleanshutdown").exists()


def test_the_service_on_a_taken_port(tmp_path: Path) -> None:
    """Its `on_failure` ends the application."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = application(tmp_path, other.getsockname()[1])[1:]
        said = run(*command, cwd=tmp_path)
    assert "the broker stopped: listeners: PLAINTEXT://127.0.0.1:" in said
    assert not (tmp_path / "broker-data" / "meta.properties").exists()


UNDER_ASYNCIO = """
import asyncio
from pathlib import Path

from tests.compat.left_behind import used_and_stopped

def reactor():
    from twisted.internet import reactor
    return reactor

async def connect(host, port):
    reader, writer = await asyncio.open_connection(host, port)
    return writer.close

asyncio.run(used_and_stopped(reactor, connect, Path("data")))

async def again():
    from twisted_broker import Broker, StartError
    try:
        await Broker().start()
    except StartError as error:
        assert "loop is not the reactor's" in str(error), error
    else:
        raise AssertionError("a second loop")

asyncio.run(again())
print(type(reactor()).__name__)
"""


def test_nothing_is_left_after_a_stop_under_asyncio(tmp_path: Path) -> None:
    """In a second loop one line says why not."""
    program = tmp_path / "program.py"
    program.write_text(UNDER_ASYNCIO)
    assert run(program, cwd=tmp_path) == "AsyncioSelectorReactor\n"


class InTheReactorOfTheTest(TestCase):
    """Trial's janitor fails it, too, for what is left."""

    def test_nothing_is_left_after_a_stop(self) -> Deferred[None]:
        from twisted.internet import reactor

        async def connect(host: str, port: int) -> Callable[[], object]:
            return socket.create_connection((host, port)).close

        data = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, data)

        async def used(world: Any = reactor) -> None:
            await deferLater(world, 0)
            own = world.getDelayedCalls()  # trial's time limit
            await used_and_stopped(lambda: world, connect, data / "data", own)

        return Deferred.fromCoroutine(used())
