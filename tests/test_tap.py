"""What `tap.py` promises about options; starting real processes is in `tests/compat`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from twisted_broker.config_validation import doubtful
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
    start at once
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
    assert config.log_directories == ("/tmp/a", "/tmp/b")
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
        (["--set", "sasl.enabled.mechanisms=PLAIN"], "SASL"),
        (["--set", "listeners=SSL://:1"], "PLAINTEXT"),
        (["--host", "0.0.0.0"], "advertised.listeners"),
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
            "controller.quorum.voters.* other nodes than this one, 1",
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
            "security.inter.broker.protocol.* nothing beside inter.broker.listener.name",
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
    said = doubtful(options("--set", f"broker.heartbeat.interval.ms={interval}").broker_config)
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
