"""A broker where Linux's own calls are missing (macOS, the BSDs): it starts, serves large and small
records to stock clients, stops cleanly and reads what it wrote. Windows: one line.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat import another_system
from tests.compat.broker_process import BrokerProcess
from tests.compat.clients import KafkaPython

ROWS = [(b"%d" % number, b"v" * (1 + number % 7 * 30_000), ()) for number in range(70)]


class OtherSystem(BrokerProcess):
    def command(self) -> list[str]:
        return [sys.executable, another_system.__file__, *super().command()[1:]]


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    return OtherSystem(tmp_path)


@pytest.mark.parametrize("gone", ["", "sendfile"])
def test_a_broker_without_linux(
    gone: str,
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """No epoll, MSG_MORE, locks of open files, preadv, pwritev; the second time no sendfile
    either. The reactor is not select, which serves 1,024 descriptors only.
    """
    monkeypatch.setenv("REPLOG_TEST_GONE", gone)
    request.addfinalizer(broker.kill)
    client = KafkaPython()
    another = [*broker.command()[:-2], "--run-file", str(broker.directory / "another.json")]
    broker.start()
    client.produce(broker.bootstrap, "letters", "none", ROWS)
    assert sorted(client.consume(broker.bootstrap, "letters", "readers", 70)) == sorted(ROWS)
    refused = subprocess.run(
        another, check=False, capture_output=True, text=True, timeout=60, cwd=broker.directory
    )
    assert refused.returncode == 1 and "another process" in refused.stderr, refused
    broker.stop()
    assert (Path(broker.data) / ".kafka_cleanshutdown").exists()
    broker.start()
    assert sorted(client.consume(broker.bootstrap, "letters", "others", 70)) == sorted(ROWS)
    broker.stop()
    said = broker.log.read_text()
    assert "Traceback" not in said and "Unhandled" not in said, said
    assert said.count("reactor class: twisted.internet.pollreactor.PollReactor") == 2, said


WINDOWS = """
import sys
for name in ("fcntl", "resource"):
    sys.modules[name] = None
{run}
"""
ENTRANCES: dict[str, Callable[[], str]] = {
    "twistd": lambda: (
        "from twisted.scripts.twistd import run; sys.argv = ['twistd', 'replog']; run()"
    ),
    "replog": lambda: "from twisted_broker.cli.main import main; main(['verify', '/nowhere'])",
}


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_windows_is_one_line(entrance: str, tmp_path: Path) -> None:
    """No `fcntl`, no `resource`: one line that names what to take instead, and status 1."""
    found = subprocess.run(
        [sys.executable, "-c", WINDOWS.format(run=ENTRANCES[entrance]())],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert found.returncode == 1 and found.stdout == ""
    assert found.stderr.count("\n") == 1 and "WSL" in found.stderr, found.stderr
