"""A broker as a service of systemd, by the messages and descriptors that systemd would use; and the
unit files of `examples/systemd`.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from tests.compat.broker_process import BrokerProcess
from tests.compat.clients import KafkaPython
from twisted_broker.tap import Options

UNITS = Path(__file__).parents[2] / "examples" / "systemd"
ROWS = [(b"%d" % number, b"value", ()) for number in range(10)]
# As systemd does between fork and exec.
EXEC = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "a.socket"}
os.environ |= {"NOTIFY_SOCKET": sys.argv[2], "WATCHDOG_USEC": "600000"}
os.execv(sys.argv[3], sys.argv[3:])
"""


class Service(BrokerProcess):
    """With a socket that listens on its port before it runs, and a socket for its messages."""

    def __init__(self, directory: Path, listening: socket.socket) -> None:
        super().__init__(directory, port=listening.getsockname()[1])
        self.listening = listening
        listening.set_inheritable(True)
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(directory / "notify"))
        self.notify.settimeout(60)

    def command(self) -> list[str]:
        given = [str(self.listening.fileno()), str(self.directory / "notify")]
        return [sys.executable, "-c", EXEC, *given, *super().command()]

    def spawn(self, wait: bool = True) -> None:
        self.run_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            self.command(),
            stdout=self.log.open("ab"),
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            pass_fds=[self.listening.fileno()],
        )

    def hears(self, message: bytes) -> list[bytes]:
        """All messages up to this one."""
        found = [self.notify.recv(4096)]
        while found[-1] != message:
            found.append(self.notify.recv(4096))
        return found

    def forget(self) -> None:
        """Messages that were not read."""
        self.notify.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.notify.recv(4096):
                pass
        self.notify.settimeout(60)


def test_a_broker_under_systemd(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Ready is said when clients are served. A client that comes before the broker waits, and one
    that comes between two runs; the watchdog hears of it, and the stop is announced.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        service = Service(tmp_path, listening)
        request.addfinalizer(service.notify.close)
        request.addfinalizer(service.kill)
        client = KafkaPython()
        bootstrap = f"127.0.0.1:{service.port}"
        for run in range(2):
            with socket.create_connection(("127.0.0.1", service.port)) as early:
                early.sendall(b"\0\0\0\x0e" + b"\0\x12\0\0" + b"\0\0\0\x07" + b"\0\x04me!!")
                service.spawn()
                assert service.hears(b"READY=1\nSTATUS=node 1 ready")[0] == b"STATUS=starting"
                early.settimeout(30)
                assert early.recv(8)[4:] == b"\0\0\0\x07"  # ApiVersions, by its correlation id
            if not run:
                client.produce(bootstrap, "letters", "none", ROWS)
                assert sorted(client.consume(bootstrap, "letters", "group", 10)) == sorted(ROWS)
            service.forget()  # there is room for few
            service.hears(b"WATCHDOG=1")
            assert service.process is not None
            service.process.send_signal(signal.SIGTERM)
            service.hears(b"STOPPING=1\nSTATUS=stopping")
            service.process.wait(60)
            service.process = None
            service.forget()
        said = service.log.read_text()
        assert "Traceback" not in said and "Unhandled" not in said, said


def test_a_socket_of_another_address(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One line that names both, and nothing is opened."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        service = Service(tmp_path, listening)
        request.addfinalizer(service.notify.close)
        other, service.port = service.port, 1
        service.spawn()
        assert service.process is not None and service.process.wait(60) == 1
        (line,) = service.log.read_text().splitlines()
        assert f"systemd passed a socket on 127.0.0.1:{other}, where no listener is" in line


def unit(name: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(UNITS / name)
    return parser


def test_the_units_fit_the_broker() -> None:
    """The command is one that the broker takes, on the address that the socket has."""
    program, *arguments = shlex.split(unit("twisted-broker.service")["Service"]["ExecStart"])
    assert program.endswith("/twistd") and arguments[:3] == ["--nodaemon", "--pidfile=", "replog"]
    given = [each.replace("%S", "/tmp").replace("%t", "/tmp") for each in arguments[3:]]  # noqa: S108
    options = Options()
    run_file = given.index("--run-file")
    del given[run_file : run_file + 2]
    options.parseOptions(given)
    port = unit("twisted-broker.socket")["Socket"]["ListenStream"]
    assert f"PLAINTEXT://{port}" in options.broker_config.names("listeners")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    names = ["twisted-broker.service", "twisted-broker.socket"]
    for name in names:
        text = (UNITS / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/twisted-broker/bin/twistd", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in names)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
