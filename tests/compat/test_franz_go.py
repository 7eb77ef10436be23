"""Transactions by franz-go, the Go client: what it commits is read, it copies each record once.

Needs `go`, and its modules from the network or Go's cache of them.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat import transactional
from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import View

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
SOURCES = Path(__file__).parent / "go"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("go") is None:
        pytest.skip("franz-go: needs go")
    fetched = subprocess.run(["go", "mod", "download"], cwd=SOURCES, capture_output=True)
    if fetched.returncode:
        pytest.skip("franz-go: its modules cannot be had")
    made = tmp_path_factory.mktemp("go") / "franzgo"
    subprocess.run(["go", "build", "-o", str(made), "."], cwd=SOURCES, check=True, timeout=500)
    return made


class FranzGo:
    def __init__(self, program: Path, bootstrap: str) -> None:
        self._program, self._bootstrap = program, bootstrap

    def run(self, command: str, *arguments: str) -> list[str]:
        """Lines that it prints."""
        words = [str(self._program), command, self._bootstrap, *arguments]
        done = subprocess.run(words, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def test_what_is_committed_is_read(broker: BrokerProcess, topic: str, program: Path) -> None:
    """By it and by the other clients; it reads past what they aborted."""
    client = FranzGo(program, broker.bootstrap)
    View(broker.bootstrap).create(topic, 1, 1)
    rounds = ["a,b,c:commit", "x,y:abort", "d:commit", "z:abort", "e,f:commit"]
    client.run("produce", topic, topic, *rounds)
    expected = ["a", "b", "c", "d", "e", "f"]
    for number, other in enumerate(transactional.ALL):
        other.produce(
            broker.bootstrap,
            f"{topic}-{other.name}",
            topic,
            [([b"no"], False), ([b"%d" % number], True)],
        )
        expected.append(str(number))
        found = other.read_committed(broker.bootstrap, topic, len(expected))
        assert [value.decode() for value in found] == expected
    assert client.run("read", topic, str(len(expected))) == expected


def test_it_copies_each_record_once(broker: BrokerProcess, topic: str, program: Path) -> None:
    """As a member of a group with its offsets in transactions; a second run goes on."""
    client = FranzGo(program, broker.bootstrap)
    target = f"{topic}-copy"
    view = View(broker.bootstrap)
    view.create(topic, 3, 1)
    view.create(target, 1, 1)
    values = [f"v{number}" for number in range(60)]
    for some in (values[:40], values[40:]):
        client.run("produce", f"{topic}-in", topic, f"{','.join(some)}:commit", "no:abort")
        copies = [f"{topic}-copier", f"{topic}-group", topic, target, str(len(some))]
        client.run("copy", *copies)
    client.run("produce", f"{topic}-in", target, "last:commit")
    found = client.run("read", target, str(len(values) + 1))
    assert sorted(found[:-1]) == sorted(value.upper() for value in values)
    assert found[-1] == "last"
