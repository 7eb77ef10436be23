"""The programs of README and of the page on tests run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIXTURE, TEST = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
(PROGRAM,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/TESTING.md").read_text(), re.DOTALL)
ANOTHER = """
def test_two_has_the_same_broker(kafka):
    with KafkaProducer(bootstrap_servers=kafka) as producer:
        assert producer.send("orders", b"two").get(30).offset == 1
"""


def run(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_fixture(tmp_path: Path) -> None:
    """Ten lines, and each broker is gone when the tests are."""
    assert len(FIXTURE.partition("@pytest.fixture")[2].rstrip().splitlines()) <= 11
    (tmp_path / "test_orders.py").write_text(FIXTURE + TEST + ANOTHER)
    said = run("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", cwd=tmp_path)
    assert "2 passed" in said and "replog node 1 stopped" in said, said
    assert not (tmp_path / "twistd.pid").exists()


def test_the_program(tmp_path: Path) -> None:
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", run("-c", PROGRAM, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []
