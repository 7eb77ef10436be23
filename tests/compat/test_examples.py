"""The files of `examples/container` and `examples/ci`, as far as that goes without Docker and a CI
service: their commands start a broker, which is healthy, and stops cleanly.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from tests.compat.broker_process import TWISTD, BrokerProcess
from twisted_broker.net.listeners import plan_listeners
from twisted_broker.tap import Options

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCKERFILE = (EXAMPLES / "container" / "Dockerfile").read_text()


def exec_form(instruction: str) -> list[str]:
    """Its arguments; no shell stands between the program and its signals."""
    (text,) = re.findall(rf"^{instruction} .*?(\[.*\])$", DOCKERFILE, re.MULTILINE)
    found: list[str] = json.loads(text)
    return found


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


class Container(BrokerProcess):
    """ENTRYPOINT and CMD, with a directory of the test's in place of the volume, and free ports."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.places = {
            "/data": self.data,
            "9092": free_port(),
            "9100": free_port(),
            "//:": "//127.0.0.1:",
        }

    def moved(self, arguments: list[str]) -> list[str]:
        for old, new in self.places.items():
            arguments = [each.replace(old, new) for each in arguments]
        return arguments

    def command(self) -> list[str]:
        _, *arguments = exec_form("ENTRYPOINT") + exec_form("CMD")
        return [str(TWISTD), *self.moved(arguments), "--run-file", str(self.run_file)]

    def health(self) -> int:
        _, *arguments = self.moved(exec_form("HEALTHCHECK"))
        check = subprocess.run([sys.executable, *arguments], timeout=60, capture_output=True)
        return check.returncode


def test_the_container(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    container = Container(tmp_path)
    request.addfinalizer(container.kill)
    assert container.health() == 1
    container.start()
    assert container.bootstrap == f"localhost:{container.places['9092']}"
    with KafkaProducer(bootstrap_servers=container.bootstrap) as producer:
        producer.send("letters", b"one").get(30)
    assert container.health() == 0
    container.stop()
    assert (Path(container.data) / ".kafka_cleanshutdown").exists()


def test_the_image_is_an_ordinary_users() -> None:
    """And its build needs nothing that the repository has not."""
    instructions = [line.split()[0] for line in DOCKERFILE.splitlines() if line[:1].isupper()]
    assert instructions.index("USER") < instructions.index("ENTRYPOINT")
    assert "STOPSIGNAL SIGTERM" in DOCKERFILE and len(instructions) <= 14


def test_the_brokers_of_the_compose_file() -> None:
    """Settings that each broker takes; together they are one cluster."""
    text = (EXAMPLES / "container" / "compose.yaml").read_text()
    _, *services = re.split(r"^  (?=kafka\d:\n    <<)", text.partition("\nvolumes:")[0], flags=re.M)
    plans = {}
    for service in services:
        name = service.partition(":")[0]
        given = exec_form("ENTRYPOINT")[4:] + re.findall(r"^      - (.*)$", service, re.M)
        options = Options()
        options.parseOptions(given)
        config = options.broker_config
        plans[name] = plan_listeners(config)
        assert f"kafka{config.node_id}" == name
        outside = plans[name].advertised["OUTSIDE"]
        assert f'["127.0.0.1:{outside.port}:{outside.port}"]' in service
        inside = plans[name].advertised["INSIDE"]
        assert (inside.host, inside.port, plans[name].inter_broker) == (name, 9092, "INSIDE")
        if name != "kafka1":
            (controller,) = plans["kafka1"].controller
            named = config.names("controller.quorum.bootstrap.servers")
            assert named == (f"kafka1:{controller.port}",) and not plans[name].controller
    assert len(plans) == 3


def test_a_broker_for_a_ci_job(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The script ends when clients are served, and leaves the broker running; where it cannot
    start, its log is shown, and the job fails.
    """
    script = [str(EXAMPLES / "ci" / "start-broker.sh"), "--port", "0"]
    path = f"{TWISTD.parent}:{os.environ['PATH']}"
    given: dict[str, Any] = {"cwd": tmp_path, "timeout": 90, "env": {**os.environ, "PATH": path}}
    refused = subprocess.run(
        [*script, "--set", "num.partitions=x"], stdout=subprocess.PIPE, text=True, **given
    )
    assert refused.returncode == 1 and "num.partitions='x' is refused" in refused.stdout
    # The broker keeps what the script prints to open: not a pipe that is read to its end.
    subprocess.run(script, check=True, **given)
    run = json.loads((tmp_path / "broker.json").read_text())
    request.addfinalizer(lambda: alive(run["pid"]) and os.kill(run["pid"], signal.SIGKILL))
    with KafkaProducer(bootstrap_servers=run["bootstrap"]) as producer:
        producer.send("letters", b"one").get(30)
    os.kill(run["pid"], signal.SIGTERM)
    until = time.monotonic() + 60
    while (tmp_path / "broker.json").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not (tmp_path / "broker.json").exists()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
