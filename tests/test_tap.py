"""What `tap.py` promises about options; starting real processes is in `tests/compat`."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from twisted_broker import __version__, tap
from twisted_broker.config_validation import warnings_for
from twisted_broker.net.listeners import plan_listeners
from twisted_broker.tap import Options

BROKER = ["--set", "process.roles=broker"]


def options(*arguments: str) -> Options:
    made = Options()
    made.parseOptions(list(arguments))
    return made


def listeners(*arguments: str) -> list[str]:
    plan = plan_listeners(options(*arguments).broker_config)
    return [str(each) for each in (*plan.broker, *plan.controller)]


def test_defaults_are_those_of_kafkas_sample_on_loopback() -> None:
    """Without `--config`: 127.0.0.1:9092, a controller on a free port, replog-data here, groups
    start at once.
    """
    config = options().broker_config
    assert listeners() == ["PLAINTEXT://127.0.0.1:9092", "CONTROLLER://127.0.0.1:0"]
    assert config.log_directories == (str(Path.cwd() / "replog-data"),)
    assert config.integer("group.initial.rebalance.delay.ms") == 0


def test_host_and_port_go_to_the_brokers_listener() -> None:
    """And to what clients are told."""
    plan = plan_listeners(options("--host", "localhost", "--port", "0").broker_config)
    assert (
        str(plan.broker[0]) == "PLAINTEXT://localhost:0"
        and plan.advertised["PLAINTEXT"].host == "localhost"
    )


def test_a_config_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    other = tmp_path / "latin.properties"
    other.write_bytes(b"# Gr\xfc\xdfe\nnode.id=1\n")
    for path, words in [
        (tmp_path / "none", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (other, "it is no UTF-8"),
    ]:
        with pytest.raises(SystemExit) as refused:
            options("--config", str(path))
        assert str(refused.value) == f"replog: --config {path} cannot be read: {words}"


def test_a_server_properties_file_is_kafkas_own(tmp_path: Path) -> None:
    """Its values replace the sample's; `--set` and options win over it."""
    path = tmp_path / "server.properties"
    path.write_text(
        "node.id=3\nlisteners=PLAINTEXT://:9192,CONTROLLER://:9193\nadvertised.listeners=PLAINTEXT://example.org:9192\n"
        "num.partitions=6\nlog.dirs=/tmp/a,/tmp/b\nunknown.name=1\n"
    )
    made = options(
        "--config",
        str(path),
        "--set",
        "num.partitions=2",
        "--set",
        "log.segment.bytes = 2000000",
        "--port",
        "7",
    )
    config = made.broker_config
    assert (
        config.node_id,
        config.integer("num.partitions"),
        config.integer("log.segment.bytes"),
    ) == (3, 2, 2000000)
    assert config.log_directories == ("/tmp/a", "/tmp/b")  # noqa: S108  names only
    assert config.unknown() == ["unknown.name"]
    assert listeners("--config", str(path), "--port", "7") == [
        "PLAINTEXT://:7",
        "CONTROLLER://:9193",
    ]
    assert options("--config", str(path), "--data", "memory").broker_config.log_directories == (
        "/memory",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "x"], "--port"),
        (["--port", "65536"], "--port"),
        (["--set", "novalue"], "name=value"),
        (["--set", "num.partitions=0"], "num.partitions='0' .* from 1"),
        (
            [
                "--set",
                "listeners=SASL_PLAINTEXT://:0,CONTROLLER://:0",
                "--set",
                "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            ],
            "sasl.*Kerberos",
        ),
        (["--set", "listeners=SSL://:1"], "PLAINTEXT"),
        (["--host", "0.0.0.0"], "advertised.listeners"),  # noqa: S104  it is refused
        (["--set", "process.roles="], "process.roles=''.* any of broker, controller"),
        (
            ["--set", "process.roles=broker"],
            "controller.quorum.bootstrap.servers.* HOST:PORT of a controller",
        ),
        (
            [*BROKER, "--set", "controller.quorum.bootstrap.servers=here"],
            "controller.quorum.bootstrap.servers='here'.* list of HOST:PORT",
        ),
        (
            [*BROKER, "--set", "controller.quorum.bootstrap.servers=127.0.0.1:99999"],
            "controller.quorum.bootstrap.servers='127.0.0.1:99999'",
        ),
        (
            [*BROKER, "--set", "controller.quorum.voters=127.0.0.1:9090"],
            "controller.quorum.voters.* ID@HOST:PORT",
        ),
        (
            [*BROKER, "--set", "controller.quorum.voters=1@127.0.0.1:9090"],
            "controller.quorum.voters.* ids of other nodes: this node, 1, is not a controller",
        ),
        (
            ["--set", "advertised.listeners=OTHER://127.0.0.1:9092"],
            "advertised.listeners.* names that listeners has: .*PLAINTEXT",
        ),
        (
            ["--set", "advertised.listeners=CONTROLLER://127.0.0.1:9093"],
            "advertised.listeners.* at least one listener of the broker",
        ),
        (["--set", "controller.listener.names="], "controller.listener.names=''"),
        (
            ["--set", "replica.lag.time.max.ms=100"],
            "replica.lag.time.max.ms='100'.* at least replica.fetch.wait.max.ms, 500",
        ),
        (
            ["--set", "replica.socket.timeout.ms=100"],
            "replica.socket.timeout.ms='100'.* at least replica.fetch.wait.max.ms, 500",
        ),
        (
            ["--set", "security.inter.broker.protocol=SSL"],
            "security.inter.broker.protocol='SSL'.* PLAINTEXT",
        ),
        (
            [
                "--set",
                "security.inter.broker.protocol=PLAINTEXT",
                "--set",
                "inter.broker.listener.name=PLAINTEXT",
            ],
            "security.inter.broker.protocol.* no value where inter.broker.listener.name is set",
        ),
        (
            ["--brokers", "3", "--set", "process.roles=broker"],
            "process.roles='broker'.* several --brokers",
        ),
        (["--brokers", "3", "--set", "replica.lag.time.max.ms=100"], "replica.lag.time.max.ms"),
        (["--config", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], words: str) -> None:
    """It names the setting, the value and what would be accepted; whatever Kafka 4.3.1 does not
    start with is refused, before anything is opened.
    """
    with pytest.raises(SystemExit, match=words) as caught:
        options(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        [
            *BROKER,
            "--set",
            "controller.quorum.bootstrap.servers=[::1]:9090,controller.example:9090",
        ],
        [*BROKER, "--set", "controller.quorum.voters=100@[::1]:9090"],
        ["--set", "advertised.listeners=PLAINTEXT://here:9092,CONTROLLER://here:9093"],
        ["--set", "security.inter.broker.protocol=PLAINTEXT"],
        ["--set", "replica.lag.time.max.ms=500", "--set", "replica.socket.timeout.ms=500"],
        ["--brokers", "3", "--set", "process.roles=broker,controller"],
    ],
    ids=" ".join,
)
def test_what_goes_together_is_taken(arguments: list[str]) -> None:
    """As under Kafka 4.3.1."""
    options(*arguments)


@pytest.mark.parametrize(("interval", "lines"), [("4500", 0), ("4501", 1)])
def test_what_will_hardly_do_is_a_warning(interval: str, lines: int) -> None:
    """Heartbeats that a session of 9 s hardly outlives: Kafka starts, and complains; the
    controller may have another time-out.
    """
    said = warnings_for(options("--set", f"broker.heartbeat.interval.ms={interval}").broker_config)
    assert len(said) == lines and all("broker.session.timeout.ms=9000" in words for words in said)


def test_listing_plugins_imports_nothing_of_ours() -> None:
    """`twistd --help` of every Twisted user reads the plugin: it must cost nothing."""
    code = (
        "import sys; "
        "from twisted import plugin; from twisted.application.service import IServiceMaker; "
        "found = [each.tapname for each in plugin.getPlugins(IServiceMaker)]; "
        "assert 'replog' in found, found; "
        "sys.exit(any(name.startswith('twisted_broker') for name in sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=False, cwd=Path(__file__).parent.parent
        ).returncode
        == 0
    )


def test_starting_imports_no_command_line_or_tls_library() -> None:
    """Memory and start time: what the broker's path does not need stays out of it."""
    code = (
        "import sys; import twisted_broker.tap, twisted_broker.broker_service; "
        "found = {'click', 'rich', 'prometheus_client', 'OpenSSL', 'kafka', 'hypothesis'} & "
        "set(sys.modules); "
        "print(found); sys.exit(bool(found))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=False, cwd=Path(__file__).parent.parent
        ).returncode
        == 0
    )


INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "most", "given"),
    [
        (1024, 4096, 4096, 4096),
        (4096, 4096, 4096, 4096),
        (256, INFINITE, 10240, 10240),
        (256, INFINITE, 1 << 20, 1 << 20),
        (256, INFINITE, 100, 256),
        (20_000, INFINITE, 10240, 20_000),
        (INFINITE, INFINITE, 0, 1 << 20),
        (1024, 4096, 0, 1024),
    ],
)
def test_the_file_limit_is_raised_as_far_as_the_system_lets_us(
    soft: int, hard: int, most: int, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the hard limit has no end (macOS), an end is chosen that the system takes; a refusal
    costs nothing but the raise.
    """
    now = [soft]

    def setrlimit(which: int, limits: tuple[int, int]) -> None:
        if limits[0] == INFINITE or limits[0] > most:
            raise ValueError("not allowed to raise maximum limit")
        assert limits[1] == hard
        now[0] = limits[0]

    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    assert tap.raise_file_limit() == given
    assert now[0] == (given if soft != INFINITE else soft)


class Loop:
    def __init__(self) -> None:
        self.stops = 0

    def callFromThread(self, call: Callable[..., None], *arguments: object) -> None:
        call(*arguments)

    def stop(self) -> None:
        self.stops += 1


def test_a_hangup_stops_in_order_and_hastens_a_stop() -> None:
    """SIGHUP, as when the terminal is closed: the first one stops the reactor, one during the
    stop hastens it; `nohup` is obeyed.
    """
    before = signal.getsignal(signal.SIGHUP)
    others = [(each, signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGINT)]
    loop, hurries = Loop(), []
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        tap._stop_on_hangup(loop)
        os.kill(os.getpid(), signal.SIGHUP)
        assert loop.stops == 1
        tap._take_signals(loop, lambda: hurries.append(1))
        os.kill(os.getpid(), signal.SIGHUP)
        assert (loop.stops, len(hurries)) == (1, 1)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        tap._stop_on_hangup(loop)
        tap._take_signals(loop, lambda: hurries.append(1))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        for number, handler in ((signal.SIGHUP, before), *others):
            signal.signal(number, handler)


def test_a_process_whose_terminal_is_closed_leaves_a_clean_stop(tmp_path: Path) -> None:
    """SIGHUP to a real process: status 0, the run file gone, every directory marked."""
    run_file = tmp_path / "run.json"
    command = [
        str(Path(sys.executable).parent / "twistd"),
        "-n",
        "--pidfile=",
        "replog",
        "--port",
        "0",
        "--data",
        str(tmp_path / "data"),
    ]
    process = subprocess.Popen(
        [*command, "--run-file", str(run_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # pytest under nohup ignores SIGHUP, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        assert any("ready on" in line for line in process.stdout)
        process.send_signal(signal.SIGHUP)
        process.stdout.read()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert not run_file.exists() and (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_the_program_of_a_broker_alone_says_its_own_name_and_version() -> None:
    command = [sys.executable, "-m", "twisted_broker"]
    told = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, f"twisted-broker {__version__}\n")
    told = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert told.stdout.startswith("Usage: twisted-broker [options]\n")
    told = subprocess.run([*command, "--port", "x"], capture_output=True, text=True)
    assert told.returncode == 1 and told.stderr.startswith("replog: --port takes a number")
