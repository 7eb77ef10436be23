"""What is done in a run, and when: recorded, and done again from a record."""

from __future__ import annotations

from random import Random

import pytest

from twisted_broker.simulation.__main__ import run_seed
from twisted_broker.simulation.schedule import Action, Actor, Schedule


def gap(random: Random) -> float:
    return random.random() * 5


def drawn(actor: Actor) -> list[tuple[float, int]]:
    """Three actions, each begun when it is due: when, and what it drew."""
    now = 0.0
    found: list[tuple[float, int]] = []
    while len(found) < 3 and (following := actor.next(now, gap)):
        now += following[0]
        actor.acts("something")
        found.append((round(now, 6), following[1].randrange(1000)))
    return found


def test_an_action_draws_the_same_whichever_others_are_done() -> None:
    schedule = Schedule(7)
    all_three = drawn(schedule.actor("p0"))
    assert drawn(schedule.actor("p1")) != all_three
    kept = [each for each in schedule.done if (each.actor, each.number) != ("p0", 2)]
    again = Schedule(7, kept)
    assert drawn(again.actor("p0")) == [all_three[0], all_three[2]]
    assert [each.number for each in again.done] == [1, 3]


def test_an_actor_that_is_late_acts_at_once() -> None:
    actor = Schedule(7, [Action(2.0, "p0", 1), Action(3.0, "p0", 2)]).actor("p0")
    following = [actor.next(now, gap) for now in (0.5, 4.0, 4.0)]
    assert [each and each[0] for each in following] == [1.5, 0.0, None]


def test_an_action_is_a_line() -> None:
    action = Action(12.345678, "faults", 3, "disk error n2")
    assert str(action) == "12.345678 faults 3 disk error n2"
    assert Action.of(str(action)) == action
    assert Action.of("1.5 p0 2") == Action(1.5, "p0", 2, "")


@pytest.mark.parametrize("seed", [1, 3])
def test_all_recorded_actions_are_the_same_run(seed: int) -> None:
    """To the byte of its trace, through the text of a file."""
    first = run_seed(seed, trace=True)
    kept = [Action.of(str(action)) for action in first.run.schedule.done]
    again = run_seed(seed, trace=True, kept=kept)
    assert first.run.schedule.done == again.run.schedule.done
    assert first.run.cluster.trace.lines == again.run.cluster.trace.lines


def test_without_actions_nothing_goes_wrong_and_nothing_is_sent() -> None:
    """A run of which everything was left out ends, and says that it proves nothing."""
    verdict = run_seed(3, kept=[])
    assert verdict.run.notes.attempts == []
    assert str(verdict.violation).startswith(("nothing was", "no producer got on"))
