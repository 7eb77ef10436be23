"""A failing run is made short, and stays a failing run."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.simulation.mutations import search, switched_on
from tests.simulation.test_mutations import RECORDED, WINDOW
from twisted_broker.simulation.__main__ import main, run_seed
from twisted_broker.simulation.many_seeds import made_short
from twisted_broker.simulation.options import Options, options_of
from twisted_broker.simulation.scenario_file import RecordedRun
from twisted_broker.simulation.schedule import Action
from twisted_broker.simulation.shrink import rule_of, shrink

ACTIONS = [Action(float(n), f"p{n % 3}", n) for n in range(1, 200)]
GUILTY = {17, 60, 61, 199}


def attempt(options: Options, actions: Sequence[Action]) -> tuple[str, list[Action]]:
    """Fails when the guilty four are done, the first of them under the run's third setting."""
    bad = {action.number for action in actions} >= GUILTY and "broker.session.timeout.ms" in (
        options.settings
    )
    return (f"t0-1: {len(actions)} lost" if bad else ""), list(actions)


def test_only_what_matters_is_left() -> None:
    run = RecordedRun(options_of(1), ACTIONS, "t1-0: 7 lost")
    short = shrink(run, attempt, lambda: True)
    assert {action.number for action in short.actions} == GUILTY
    assert list(short.options.settings) == ["broker.session.timeout.ms"]
    assert short.violation == "t0-1: 4 lost"


def test_another_rule_is_another_failure() -> None:
    def other(options: Options, actions: Sequence[Action]) -> tuple[str, list[Action]]:
        violation, done = attempt(options, actions)
        return violation or "not healed 120 s after the last fault: t0-0", done

    short = shrink(RecordedRun(options_of(1), ACTIONS, "t1-0: 7 lost"), other, lambda: True)
    assert {action.number for action in short.actions} == GUILTY


def test_what_does_not_fail_again_stays_as_it_is() -> None:
    run = RecordedRun(options_of(1), ACTIONS, "t1-0: 7 lost")
    assert shrink(run, lambda options, actions: ("", list(actions)), lambda: True) is run


def test_it_ends_with_its_time() -> None:
    """What was found by then is the result, and it has been run."""
    tries: list[int] = []

    def counted(options: Options, actions: Sequence[Action]) -> tuple[str, list[Action]]:
        tries.append(len(actions))
        return attempt(options, actions)

    run = RecordedRun(options_of(1), ACTIONS, "t1-0: 7 lost")
    short = shrink(run, counted, lambda: len(tries) < 12)
    assert len(tries) == 12
    assert {action.number for action in short.actions} > GUILTY
    assert attempt(short.options, short.actions)[0] == short.violation


def test_what_makes_two_violations_one() -> None:
    assert rule_of("t0-1: n2 is in the ISR (1, 2), ends at 7") == rule_of(
        "t1-0: n3 is in the ISR (3,), ends at 12"
    )
    assert rule_of("n1 logged: a\n  File x, line 3\nKeyError: 'b'") == rule_of(
        "n2 logged: a\n  File x, line 4\n  more\nKeyError: 'c'"
    )
    assert rule_of("n1 logged: a\nKeyError: 1") != rule_of("n1 logged: a\nValueError: 1")
    assert rule_of("not healed 120 s: x") == rule_of("not healed 119 s: y")


@pytest.mark.more
@pytest.mark.forked
@pytest.mark.timeout(600)
def test_a_planted_mistake_is_a_few_actions(tmp_path: Path) -> None:
    """The file is much shorter than the run, fails by the same rule, and passes without the
    mistake; the command says both.
    """
    name, path, out = "produce_completed_on_the_log_end", tmp_path / "short.json", io.StringIO()
    found = search(name, WINDOW, RECORDED[name])
    assert found is not None
    recorded = found[1].recorded
    with switched_on(name):
        made_short(
            recorded,
            lambda options, kept: run_seed(options.seed, options=options, kept=kept).recorded,
            path,
            120.0,
        )
        short = RecordedRun.load(path)
        assert len(short.actions) * 3 < len(recorded.actions)
        assert rule_of(short.violation) == rule_of(recorded.violation)
        assert main(["--replay", str(path)], out) == 1
    assert short.violation in out.getvalue() and str(short.actions[0]) in out.getvalue()
    assert main(["--replay", str(path)], out) == 0


def test_what_is_no_such_file(tmp_path: Path) -> None:
    """One line that names the file."""
    path, out = tmp_path / "run.json", io.StringIO()
    RecordedRun(options_of(0), ACTIONS, "lost").save(path)
    assert RecordedRun.load(path) == RecordedRun(options_of(0), ACTIONS, "lost")
    for broken in ("{", "{}", path.read_text().replace('"seconds"', '"hours"')):
        path.write_text(broken)
        assert main(["--replay", str(path)], out) == 2
    assert main(["--replay", str(tmp_path / "none.json")], out) == 2
    assert out.getvalue().count("\n") == 4 and out.getvalue().count("not a recorded run") == 3
