"""Members of a simulated ZooKeeper cluster under seeds, every rule checked after every step (RL
0.2, 9.1-9.5), and the mistakes that this must notice.
"""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path

import pytest

from tests.simulation.zookeeper_mutations import MUTATIONS, search
from twisted_broker.simulation.__main__ import main, run_seed
from twisted_broker.simulation.checks.committed_state import Violation
from twisted_broker.simulation.scenario_file import RecordedRun
from twisted_broker.simulation.zookeeper.options import zookeeper_options_of

RECORDED = {
    "isr_written_unconditionally": 28,
    "controller_epoch_not_checked": 1,
    "older_role_obeyed": 248,
    "expired_session_not_noticed": 7,
    "delete_sentinel_ignored": 1,
    "accepted_before_it_is_registered": 0,
}
"""Mistake -> a seed that notices it. 28 is of protocol 2.6, 1 of 3.9."""
QUICK = ("isr_written_unconditionally",)
WINDOW = 30
"""A change of the production code makes every seed another run."""
FAILED_ONCE = {
    43: "a controller handled events of before its election with an image that it had not read",
    193: "the same: a deletion of topics was taken for one that was done",
    213: "the same, in a reassignment",
    591: "a deletion was answered before a loss of power could not undo it any more",
    393: "a controller that lost its connection as it began went on with what it had not read",
    1216: "a consumer stayed with a broker whose session had ended amid a reassignment",
    3134: "a session that ended while it was registered was not followed by a registration",
    3543: "a controller refused what it had written itself before it lost its connection",
    3696: "a broker whose session ended as it stopped asked the controller for a minute and a half",
    4624: "a connection that was reset before it was handed over stayed open for its owner",
    2201: "a controller that was replaced as it gave the first producer ids counted as a bug",
    2207: "an operator threw away a replica that only waited for newer metadata",
    1812: "one unclean election was counted twice",
    288: "a log was held to be whole that had lost power after a kill",
}
_OF_THE_MUTATION = re.compile(r"(TypeError|AttributeError|NameError|AssertionError)")


@cache
def violation_of(seed: int) -> Violation | None:
    """Without a mistake."""
    return run_seed(seed, options=zookeeper_options_of(seed)).violation


def test_every_mistake_has_a_seed() -> None:
    assert RECORDED.keys() == MUTATIONS.keys()


@pytest.mark.more
@pytest.mark.forked
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.long)
        for name in sorted(RECORDED)
    ],
)
def test_a_recorded_zookeeper_seed_notices_it(name: str) -> None:
    """RL 0.2, 1.3, 1.5, 2.5: the seed breaks a rule with the mistake, and none without it."""
    found = search(name, WINDOW, RECORDED[name])
    assert found is not None, f"search again: python -m tests.simulation.zookeeper_mutations {name}"
    seed, verdict = found
    assert not _OF_THE_MUTATION.search(str(verdict.violation)), verdict.violation
    assert violation_of(seed) is None, "the seed fails without the mistake, too"


@pytest.mark.timeout(300)
def test_a_seed_of_protocol_3_9() -> None:
    """RL 0.2, 9.1-9.5; the others are in `make simulate ZOOKEEPER=1`."""
    assert violation_of(5) is None


@pytest.mark.more
@pytest.mark.forked
@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_zookeeper_seeds_that_failed_once(seed: int) -> None:
    assert violation_of(seed) is None


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_hundred_zookeeper_seeds() -> None:
    """RL 0.2: nothing acknowledged is lost, one leader per epoch, ISRs change under the version
    that their leader knows only; all that the table names was reached.
    """
    out = io.StringIO()
    assert main(["--zookeeper", "--seeds", "100", "--quiet"], out) == 0, out.getvalue()


def test_what_a_zookeeper_seed_is() -> None:
    """Even ones have protocol 2.6, odd ones 3.9; a file of a run keeps which it was."""
    assert zookeeper_options_of(5) == zookeeper_options_of(5) != zookeeper_options_of(7)
    assert [zookeeper_options_of(seed).zookeeper for seed in range(3)] == ["2.6", "3.9", "2.6"]
    assert not zookeeper_options_of(4).churn, "topics of 2.6 have no ids"


def test_a_run_is_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    RecordedRun(zookeeper_options_of(3), [], "").save(path)
    assert RecordedRun.load(path).options == zookeeper_options_of(3)
