"""Which slow turns count against a broker, from the very line that it writes."""

from __future__ import annotations

from pathlib import Path

from tests.faults.slow_turns import SlowTurn, slow_turns, too_slow
from tests.test_reactor_watch import Machine


def test_the_line_of_the_watch_is_read(tmp_path: Path) -> None:
    with Machine() as machine:
        machine.piece("Fetch v17 (of all)", 0.4, worked=0.25, waited=0.5)
        machine.collections += 1
        machine.poll()
    log = tmp_path / "log"
    log.write_text("something else\n" + "\n".join(machine.lines) + "\nmore\n")
    (found,) = slow_turns(log)
    assert found == SlowTurn(400, 100, 200, "Fetch v17 (of all)") and found.blocked == 100
    assert slow_turns(tmp_path / "none") == []


def test_work_counts_always_and_waiting_on_an_idle_machine_only() -> None:
    worked, stopped, crowded, short = (
        SlowTurn(260, 250, 0, "work"),
        SlowTurn(5000, 3, 0, "a disk, or SIGSTOP"),
        SlowTurn(900, 100, 790, "others"),
        SlowTurn(190, 190, 0, "short"),
    )
    starting = SlowTurn(990, 990, 0, "the start: imports")
    turns = [worked, stopped, crowded, short, starting]
    assert too_slow(turns, is_idle=False) == [worked]
    assert too_slow(turns, is_idle=True) == [worked, stopped]
