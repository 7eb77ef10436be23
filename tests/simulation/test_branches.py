"""Which branches seeds take is measured, and what is dark is said in words."""

from __future__ import annotations

import io

import pytest

from tests.simulation.branches import PARTS, Module, _text, measure, modules, write
from twisted_broker.simulation.options import options_of


def test_the_modules_are_those_of_ring_0() -> None:
    """Of each part some; none that speaks to the reactor."""
    paths = [str(path) for path in modules()]
    for part in PARTS:
        assert any(f"/twisted_broker/{part}/" in path for path in paths), part
    assert any(path.endswith("/log/log.py") for path in paths)
    assert not any(path.endswith("/cluster/observer.py") for path in paths)


def test_a_branch_is_a_line_and_where_it_would_go() -> None:
    lines = ["if a:", "    b()", "c()"]
    assert _text(lines, 1, 3) == "1 `if a:` to 3 `c()`"
    assert _text(lines, 1, -1) == "1 `if a:` to the end"


def test_what_is_dark_stands_behind_the_table() -> None:
    out = io.StringIO()
    found = [Module("log/a.py", 4, 3, [("f", ["1 `if a:` to the end"])]), Module("b.py", 0, 0, [])]
    write(found, out)
    rows = [line.split() for line in out.getvalue().splitlines()[1:4]]
    assert rows[0] == ["log/a.py", "4", "3", "1", "75.0", "%"]
    assert rows[1] == ["b.py", "0", "0", "0", "100.0", "%"]
    assert rows[2] == ["all", "4", "3", "1", "75.0", "%"]
    assert out.getvalue().endswith("\nlog/a.py f\n  1 `if a:` to the end\n")


@pytest.mark.timeout(200)
def test_a_seed_takes_branches_in_each_part() -> None:
    """In a process of its own; a seed with a group has a coordinator."""
    seed = next(each for each in range(100) if options_of(each).members)
    found = {each.path: each for each in measure([seed], 1)}
    for part in PARTS:
        assert sum(each.taken for path, each in found.items() if path.startswith(f"{part}/")) > 20
    log = found["log/log.py"]
    assert 0 < log.taken < log.branches
    assert sum(len(branches) for _, branches in log.dark) == log.branches - log.taken
