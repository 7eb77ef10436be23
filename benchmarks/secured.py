"""`python -m benchmarks.secured [ours] [kafka] [commit:REV]`: TLS and SASL, programs side by side.

1. Each program is one node with two listeners, SSL and SASL_SSL (PLAIN), and the same certificate
   (`replog tls make`: ECDSA, P-256); measures and rounds take turns as in `compare`.
2. The client is the same for all: Python's `ssl`, which checks the certificate, and never resumes
   a session, so each handshake is a whole one.
3. The longest turn is of our reactor alone, by its own metrics: 0 when none took `NOTABLE_MS`;
   when none was longer than the longest before, it is at most that one. It is the time of the
   clock: on a machine in use it has what others took. What another client had to wait is measured
   for all programs.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import shutil
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection as PipeEnd
from pathlib import Path
from urllib.request import urlopen

from benchmarks.compare import Samples, end, loads, report
from benchmarks.load import Figures, Target, bulk, fetch_rates, percentile_ms, produce_rates
from benchmarks.requests import Address, Connection, Opener, frame, open_plain, string
from benchmarks.servers import ROOT, Commit, Kafka, Ours, free_port
from twisted_broker.cli.tls import make_certificates

HANDSHAKES, AT_ONCE = 1000, 50
NOTABLE_MS = 10
USER, PASSWORD = "load", "load-secret"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
REQUEST = frame(API_VERSIONS, 0, b"")


def client_context(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


def open_tls(authority: Path) -> Opener:
    context = client_context(authority)

    def opened(address: Address) -> socket.socket:
        made = open_plain(address)
        try:
            return context.wrap_socket(made, server_hostname=address[0])
        except OSError:
            made.close()
            raise

    return opened


def open_sasl(opener: Opener) -> Opener:
    """Over what `opener` gives, by PLAIN."""

    def opened(address: Address) -> socket.socket:
        made = Connection(address, 4096, opener)
        token = f"\0{USER}\0{PASSWORD}".encode()
        for api_key, body in (
            (SASL_HANDSHAKE, string("PLAIN")),
            (SASL_AUTHENTICATE, struct.pack(">i", len(token)) + token),
        ):
            error = made.call(api_key, 1, body).take("h")
            if error:
                raise ConnectionError(f"API {api_key}: error {error}")
        return made.socket

    return opened


class Doors:
    """The two listeners of a program, and how they are called."""

    def __init__(self) -> None:
        self.certificates = Path(tempfile.mkdtemp(prefix="load-certificates-"))
        make_certificates(self.certificates)
        self.tls = open_tls(self.certificates / "ca.pem")
        self.sasl_address: Address = ("127.0.0.1", 0)

    def listeners(self, port: int) -> str:
        """With a new port for the second one."""
        self.sasl_address = ("127.0.0.1", free_port())
        return f"SSL://127.0.0.1:{port},SASL_SSL://127.0.0.1:{self.sasl_address[1]}"

    def settings(self) -> str:
        own = f'username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";'
        lines = {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
            "inter.broker.listener.name": "SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{_PLAIN} {own}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.certificates / "broker.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates / "ca.pem",
        }
        return "\n".join(f"{name}={value}" for name, value in lines.items())

    def close(self) -> None:
        shutil.rmtree(self.certificates, ignore_errors=True)


class SecuredOurs(Ours):
    def __init__(self, name: str, checkout: Path) -> None:
        super().__init__(name, checkout)
        self.doors = Doors()
        self.opener = self.doors.tls

    def prepare(self) -> None:
        super().prepare()
        self.status_port = free_port()
        (self.directory / "server.properties").write_text(
            "node.id=1\nprocess.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n"
            f"listeners={self.doors.listeners(self.address[1])},"
            f"CONTROLLER://127.0.0.1:{free_port()}\n"
            f"replog.status.port={self.status_port}\nreplog.reactor.slow.ms={NOTABLE_MS}\n"
            f"{self.doors.settings()}\n"
        )

    def command(self) -> list[str]:
        twistd = str(Path(sys.executable).parent / "twistd")
        options = ["--config", str(self.directory / "server.properties")]
        data = ["--data", str(self.directory / "data")]
        return [sys.executable, twistd, "-n", "--pidfile=", "replog", *options, *data]


class SecuredCommit(SecuredOurs, Commit):
    """Of an earlier commit, in a worktree of its own that is removed at the end."""

    def __init__(self, revision: str) -> None:
        Commit.__init__(self, revision)


class SecuredKafka(Kafka):
    def __init__(self) -> None:
        super().__init__()
        self.doors = Doors()
        self.opener = self.doors.tls

    def listeners(self) -> str:
        return self.doors.listeners(self.address[1])

    def settings(self) -> str:
        return self.doors.settings()


class SecuredTarget(Target):
    """`sasl`: the same server by its other listener."""

    def __init__(self, one: SecuredOurs | SecuredKafka, scale: float) -> None:
        super().__init__(one.address, one.pids, scale, one.opener)
        self.sasl = Target(one.doors.sasl_address, one.pids, scale, open_sasl(one.doors.tls))
        self.sasl.other_cores = self.other_cores
        self.status = one.status_port if isinstance(one, SecuredOurs) else 0
        self.context = client_context(one.doors.certificates / "ca.pem")

    def turns(self) -> tuple[float, float] | None:
        """How many slow ones so far, and the longest in seconds; None of a program without."""
        if not self.status:
            return None
        with urlopen(f"http://127.0.0.1:{self.status}/metrics") as answer:
            text = answer.read().decode()
        count, longest = (
            float(re.findall(rf"^\w*{name} (\S+)$", text, re.M)[0])
            for name in ("slow_turn_seconds_count", "longest_turn_seconds")
        )
        return count, longest


def bulk_over_tls(target: SecuredTarget) -> Figures:
    return _prefixed("TLS", bulk(target))


def rates_over_sasl(target: SecuredTarget) -> Figures:
    return _prefixed("SASL_SSL", produce_rates(target.sasl) | fetch_rates(target.sasl))


def _prefixed(prefix: str, figures: Figures) -> Figures:
    return {f"{prefix}, {name}": value for name, value in figures.items()}


def handshakes(target: SecuredTarget) -> Figures:
    """1,000 new connections, 50 of them at once, each answered once; beside them a client that
    is connected already.
    """
    count = max(AT_ONCE, int(HANDSHAKES * target.scale))
    before = target.turns()
    ours, theirs = Pipe()
    other = get_context("fork").Process(target=wait_and_see, args=(target, theirs))
    other.start()
    try:
        if ours.recv() != "connected":
            raise RuntimeError("the other client did not connect")
        with target.meter() as meter:
            shake_hands(target, count)
        ours.send("enough")
        waits: list[float] = ours.recv()
    finally:
        other.join(30)
    name = f"{count:,} handshakes"
    figures = {
        f"{name}: s": meter.seconds,
        f"{name}: server CPU ms each": meter.server_cpu_s / count * 1e3,
        f"{name}: another client's p99 ms": percentile_ms(waits, 0.99),
        f"{name}: another client's longest ms": max(waits) * 1e3,
    }
    if before is not None:
        after = target.turns() or before
        figures[f"{name}: longest turn ms"] = after[1] * 1e3 if after[0] > before[0] else 0.0
    return figures


def wait_and_see(target: Target, to: PipeEnd) -> None:
    """A process of its own: seconds that each of its requests took, one a millisecond."""
    waits = []
    with target.connect(4096) as connection:
        to.send("connected")
        while not to.poll(0.001):
            began = time.perf_counter()
            connection.call(API_VERSIONS, 0, b"")
            waits.append(time.perf_counter() - began)
    to.send(waits)


def shake_hands(target: SecuredTarget, count: int) -> None:
    """Each connection is made, shakes hands, sends a request, and ends with its answer."""
    poll = select.epoll()
    under_way: dict[int, ssl.SSLSocket] = {}
    shaking: set[int] = set()
    begun = done = 0

    def go_on(made: ssl.SSLSocket) -> bool:
        """Whether it is over."""
        number = made.fileno()
        wanted = select.EPOLLIN
        try:
            if number in shaking:
                made.do_handshake()
                shaking.remove(number)
                made.send(REQUEST)
            return len(made.recv(4096)) > 4
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            wanted = select.EPOLLOUT
        poll.modify(number, wanted)
        return False

    while done < count:
        while begun < count and len(under_way) < AT_ONCE:
            begun += 1
            plain = open_plain(target.address)
            plain.setblocking(False)
            made = target.context.wrap_socket(
                plain, server_hostname=target.address[0], do_handshake_on_connect=False
            )
            number = made.fileno()
            under_way[number] = made
            shaking.add(number)
            poll.register(number, select.EPOLLOUT)
        for number, _ in poll.poll(10):
            if go_on(under_way[number]):
                poll.unregister(number)
                under_way.pop(number).close()
                done += 1
    poll.close()


MEASURES: dict[str, Callable[[SecuredTarget], Figures]] = {
    "handshakes": handshakes,
    "bulk": bulk_over_tls,
    "rates": rates_over_sasl,
}


def program(text: str) -> SecuredOurs | SecuredKafka:
    """By its name on the command line. SystemExit for another."""
    if text == "ours":
        return SecuredOurs(text, ROOT)
    if text == "kafka":
        return SecuredKafka()
    kind, _, revision = text.partition(":")
    if kind == "commit":
        return SecuredCommit(revision)
    raise SystemExit(f"{text!r} is none of ours, kafka, commit:REV")


def arguments() -> argparse.Namespace:
    has_kafka = os.environ.get("KAFKA_HOME") or os.environ.get("KAFKA_JARS")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "programs",
        nargs="*",
        default=["ours", "kafka"] if has_kafka else ["ours"],
        help="ours | kafka | commit:REV",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="shortens every measure")
    parser.add_argument("--only", nargs="*", choices=list(MEASURES), help="these measures alone")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    programs = [program(text) for text in options.programs]
    samples: Samples = {}
    others: list[float] = []
    try:
        others = loads(programs, options, samples, MEASURES, SecuredTarget)
    finally:
        end(programs)
        for one in programs:
            one.doors.close()
    report(programs, samples, others)


if __name__ == "__main__":
    main()
