"""Issue 4, section 4: real processes and stock clients through kills, stops, partitions and rolling
restarts; nothing acknowledged is lost.

The long runs are `python -m tests.faults.run --seed 1 --rounds 100`, the same with `--rounds 30
--combined`, and with `--transactions`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.kinds import KINDS
from tests.faults.node import PATIENCE_SECONDS
from tests.faults.rounds import Run
from tests.faults.security import SASL_SSL
from tests.faults.summary import plan

SHORT = ("kill-leader", "stop-broker", "rolling-restart", "cut-controller", "kill-controller")


def passes(run: Run) -> None:
    summary, rounds = run.run(), len(run.plan)
    report = "\n".join(summary.lines())
    assert not summary.problems, f"{report}\n{run.log_tail()}"
    assert summary.rounds == rounds and not any(summary.anomalies.values()), report
    assert all(seconds < PATIENCE_SECONDS / 3 for _, seconds in summary.moves), report
    assert summary.acknowledged > 100 * rounds and summary.polled > summary.acknowledged, (
        f"too little to prove anything\n{report}"
    )
    print(report)


def test_a_plan_has_every_kind_before_any_comes_again() -> None:
    """And is the seed's."""
    order = plan(7, 2 * len(KINDS))
    assert set(Counter(order).values()) == {2} and set(order[: len(KINDS)]) == set(KINDS)
    assert order == plan(7, 2 * len(KINDS)) != plan(8, 2 * len(KINDS))
    assert set(plan(7, len(SHORT), SHORT)) == set(SHORT)


@pytest.mark.clients
@pytest.mark.timeout(1200)
def test_five_rounds(tmp_path: Path) -> None:
    """A kill, a stop, a rolling restart, a partition, and the death of the controller."""
    passes(Run(5, len(SHORT), tmp_path, kinds=SHORT))


@pytest.mark.clients
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_five_rounds_of_a_quorum(tmp_path: Path) -> None:
    """The same where all three are controllers, and the active one dies."""
    passes(Run(5, len(SHORT), tmp_path, kinds=SHORT, is_quorum=True))


@pytest.mark.clients
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_five_rounds_over_sasl_ssl(tmp_path: Path) -> None:
    """The same with TLS and SCRAM between all nodes and clients."""
    passes(Run(5, len(SHORT), tmp_path, kinds=SHORT, security=SASL_SSL))


@pytest.mark.clients
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_rounds_of_transactions(tmp_path: Path) -> None:
    """Transactional producers, programs that read and write, read_committed consumers: each
    committed transaction is there as a whole, and passed on once.
    """
    passes(Run(3, 2, tmp_path, kinds=("kill-leader", "stop-broker"), transactions=True))


@pytest.mark.clients
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_what_acks_1_loses_is_found(tmp_path: Path) -> None:
    """The judge can say no: what a leader acknowledged alone, and died with, is told as lost."""
    summary = Run(2, 2, tmp_path, kinds=("isolate-then-kill",), acks="1").run()
    assert (
        summary.problems
        and summary.anomalies["lost-write"] + summary.anomalies["inconsistent-offsets"] > 0
    ), summary.lines()


@pytest.mark.clients
@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("rounds", "combined"), [(100, False), (30, True)])
def test_many_rounds(tmp_path: Path, rounds: int, combined: bool) -> None:
    """Every kind of fault, again and again; with a controller of its own, and with a broker that
    is the controller too.
    """
    passes(Run(1, rounds, tmp_path, combined))
