"""The programs of README and of the page on tests run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    f"{page}-{number}": program
    for page in ("README", "docs/TESTING")
    for number, program in enumerate(
        re.findall(r"```python\n(.*?)```", (ROOT / f"{page}.md").read_text(), re.DOTALL)
    )
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name: str, tmp_path: Path) -> None:
    """Alone in an empty folder, with no other file than itself."""
    program = PROGRAMS[name]
    is_test = "def test_" in program
    is_scenario = "async def simulate" in program
    if "pytest_twisted" in program:
        pytest.importorskip("pytest_twisted")
    path = tmp_path / ("test_orders.py" if is_test else "program.py")
    path.write_text(program)
    options = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test else []
    if is_scenario:  # with its first seed
        options = ["-m", "twisted_broker.testing.simulated", "--seeds", "1"]
    done = subprocess.run(
        [sys.executable, *options, path.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        cwd=tmp_path,
    )
    if is_scenario and "hashes None by its address" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout
    count = program.count("def test_")
    assert (f"{count} passed" if is_test else "") in done.stdout, done.stdout
    left = {each.name for each in tmp_path.iterdir()} - {path.name, "__pycache__"}
    assert left == set()


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 7
