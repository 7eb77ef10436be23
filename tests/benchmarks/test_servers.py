"""What ends a benchmark with status 1, whatever its figures are."""

from __future__ import annotations

import pytest

from benchmarks import servers
from benchmarks.servers import Program, end_when_slow
from tests.faults.slow_turns import MOST_MS, SlowTurn


@pytest.mark.parametrize(
    ("worked", "blocked", "is_idle", "ends"),
    [
        (MOST_MS, 0, True, False),
        (MOST_MS + 1, 0, False, True),
        (0, MOST_MS + 1, True, True),
        (0, MOST_MS + 1, False, False),
    ],
)
def test_a_turn_that_was_too_long(
    worked: int, blocked: int, is_idle: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a program that was stopped; on a busy machine only what its reactor worked counts."""
    monkeypatch.setattr(servers, "is_machine_idle", lambda: is_idle)
    quick, slow = Program("quick"), Program("slow")
    slow.slow = [SlowTurn(worked + blocked, worked, 0, "Fetch v16")]
    if not ends:
        end_when_slow([quick, slow])
        return
    with pytest.raises(SystemExit, match=r"^slow: a turn of the reactor of 201 ms"):
        end_when_slow([quick, slow])
