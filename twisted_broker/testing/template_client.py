"""The test's side of its clusters' processes.

Owns `Template` (the process that clusters are forked from, one for each process of tests) and
`Connection` (to one cluster).

1. A process of clusters lives as long as the test's end of its socket: none outlives the test,
   however that ends, SIGKILL included. No other process has that end (it is closed by exec; a
   worker forked from a test keeps it as long as it lives).
2. One call is made at a time; an answer belongs to it by its number.
3. Nothing is imported here but the standard library: a test pays a few milliseconds.

Source: our own.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from twisted_broker.testing.in_force import with_line

LENGTH = struct.Struct(">I")
# The packages' folder, wherever the test's directory is.
_HOME = str(Path(__file__).parents[2])


class ClusterError(Exception):
    """What a cluster could not do; `str()` is one line, or the log's end where it died."""


class ClusterTimeout(ClusterError, TimeoutError):
    """What did not happen in time."""


class Template:
    """Makes clusters. `process_id` says whose it is: a fork of a test makes one of its own."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = _HOME if not known else f"{_HOME}{os.pathsep}{known}"
        program = "import sys; from twisted_broker.testing.template import serve; "
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    f"{program}serve(int(sys.argv[1]))",
                    str(theirs.fileno()),
                ],
                pass_fds=(theirs.fileno(),),
                env=environment,
                stdin=subprocess.DEVNULL,
                # A pipe of the test's runner must end with the runner.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        self._socket = ours
        self.process_id = os.getpid()
        atexit.register(self._end)

    @property
    def runs(self) -> bool:
        return self.process_id == os.getpid() and self._process.poll() is None

    def _end(self) -> None:
        """Nothing is left to warn of; clusters end by their own sockets."""
        if self.process_id == os.getpid():
            self._socket.close()
            self._process.kill()
            self._process.wait()

    def fork(self) -> Connection:
        """A cluster's process, which is not started yet."""
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile("w+b")  # noqa: SIM115  the connection closes it
        with theirs:
            socket.send_fds(self._socket, [b"+"], [theirs.fileno(), log.fileno()])
        return Connection(ours, log)


_template: Template | None = None
_making = threading.Lock()


def template() -> Template:
    """The one of this process; it is started where there is none."""
    global _template  # noqa: PLW0603  one for each process
    with _making:
        if _template is None or not _template.runs:
            _template = Template()
        return _template


class Connection:
    """To one cluster. `log`: the file with what it logs."""

    def __init__(self, control: socket.socket, log: IO[bytes]) -> None:
        self.socket, self._log = control, log
        self.number = 0
        """of the last call"""
        self._parts = bytearray()
        self._calling = threading.Lock()

    def call(self, name: str, /, **arguments: Any) -> Any:
        """Raises ClusterError, ClusterTimeout."""
        arguments = with_line(name, arguments)
        with self._calling:
            if self.socket.fileno() < 0:
                raise ClusterError("the cluster is closed: nothing can be asked of it any more")
            try:
                self.socket.sendall(self.request(name, arguments))
                # Those before it are of calls that Ctrl-C or a test's time-out left.
                while (found := json.loads(self._received()))["id"] != self.number:
                    pass
                return self.result(found)
            except ConnectionError:
                raise self.died() from None

    def request(self, name: str, arguments: dict[str, Any]) -> bytes:
        """The bytes of a call."""
        self.number += 1
        message = json.dumps({"id": self.number, "call": name, **arguments}).encode()
        return LENGTH.pack(len(message)) + message

    def result(self, found: dict[str, Any]) -> Any:
        """Of an answer. Raises ClusterError, ClusterTimeout."""
        if "error" not in found:
            return found["result"]
        raise (ClusterTimeout if found["kind"] == "TimeoutError" else ClusterError)(found["error"])

    def _received(self) -> bytes:
        """The next answer, without its length. One that is interrupted goes on at the next call."""
        parts = self._parts
        while len(parts) < LENGTH.size or len(parts) < LENGTH.size + LENGTH.unpack_from(parts)[0]:
            part = self.socket.recv(1 << 20)
            if not part:
                raise ConnectionResetError
            parts += part
        end = LENGTH.size + LENGTH.unpack_from(parts)[0]
        answer = bytes(parts[LENGTH.size : end])
        del parts[:end]
        return answer

    def handed_on(self) -> Connection | None:
        """Another one to the same cluster; this one is closed. None: somebody waits for a call, or
        left one.
        """
        if not self._calling.acquire(blocking=False):
            return None
        try:
            if self._parts or self.socket.fileno() < 0:
                return None
            made = Connection(self.socket.dup(), self._log)
            made.number = self.number
            self.socket.close()
            return made
        finally:
            self._calling.release()

    def died(self) -> ClusterError:
        return ClusterError(f"the cluster's process ended:\n{self.log(0)[-2000:]}")

    def log(self, since: int) -> str:
        """What was logged from that byte on."""
        return os.pread(self._log.fileno(), 1 << 24, since).decode(errors="replace")

    @property
    def log_size(self) -> int:
        return os.fstat(self._log.fileno()).st_size

    def close(self) -> None:
        """Ends the process."""
        self.socket.close()
        self._log.close()
