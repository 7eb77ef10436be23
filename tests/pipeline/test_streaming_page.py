"""docs/STREAMING.md's programs run as they stand there, and give the tables that it shows."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.compat.broker_process import BrokerProcess
from tests.pipeline.jobs import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
PAGE = (Path(__file__).parents[2] / "docs" / "STREAMING.md").read_text()
ORDERS, TAKINGS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOWN = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"^    python (\w+\.py) (.*)$", PAGE, re.MULTILINE)
ADDRESS = "127.0.0.1:9092"


@pytest.fixture
def run(spark: SparkSession, broker: BrokerProcess, tmp_path: Path, monkeypatch):
    """A program of the page by its command there, in this process: its `session.build` finds the
    running session. Only the broker's address is another.
    """
    (tmp_path / "orders.py").write_text(ORDERS)
    (tmp_path / "takings.py").write_text(TAKINGS)
    monkeypatch.chdir(tmp_path)

    def run(program: str, arguments: str) -> str:
        line = arguments.replace(ADDRESS, broker.bootstrap).replace(
            " takings", f" {tmp_path}/takings"
        )
        monkeypatch.setattr(sys, "argv", [program, *line.split()])
        with contextlib.redirect_stdout(io.StringIO()) as said:
            runpy.run_path(str(tmp_path / program), run_name="__main__")
        return said.getvalue()

    tables.create(broker.bootstrap, "shop-orders", 2)
    yield run
    tables.delete(broker.bootstrap, "shop-orders")


def test_the_page(run, tmp_path: Path) -> None:
    """Both runs, as shown; then once more after a kill between the sink's commit and the
    checkpoint's: nothing is counted twice.
    """
    said = [run(program, arguments) for program, arguments in COMMANDS]
    assert [text.strip() for text in said if text] == [text.strip() for text in SHOWN]
    commits = tmp_path / "takings" / "_checkpoint" / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in commits.iterdir():
        if str(last) in path.name.split("."):  # its checksums too, which would be of another file
            path.unlink()
    assert run(*COMMANDS[-1]).strip() == SHOWN[-1].strip()
