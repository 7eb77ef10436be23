"""A failing run made short: actions and conditions are left out while it breaks the same rule.

Owns `shrink`, `leave_out` and `rule_of`.

1. What is left out is tried, never supposed: each step is a run. The result has been run, and
   breaks the rule.
2. First whole actors, then ever smaller groups of actions (delta debugging), then conditions of
   the run, one at a time; again until nothing more can go, or the time is up.

Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002). Why
actions, not drawn numbers: a draw that goes moves all later ones to other questions, and the run is
another one; an action that goes leaves the rest of the schedule as it was.

Not here: the file (`simulation/scenario_file.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace

from twisted_broker.simulation.network import NetworkConditions
from twisted_broker.simulation.options import Options
from twisted_broker.simulation.scenario_file import RecordedRun
from twisted_broker.simulation.schedule import Action

Attempt = Callable[[Options, Sequence[Action]], tuple[str, list[Action]]]
"""Runs it: the violation ("" for none), and the actions that were done"""
_INHERENT = ("seed", "brokers", "liveness", "seconds")


def rule_of(violation: str) -> str:
    """What two violations share that break the same rule: no numbers, no lists, no middle of a
    traceback.
    """
    if violation.startswith("not healed"):
        return "not healed"
    lines = violation.strip().splitlines()
    text = " .. ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else ""
    without_lists = re.sub(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}", "()", text)
    return re.sub(r"'[^']*'|\d+", "#", without_lists)


class _Shrinking:
    """The shortest so far."""

    def __init__(self, run: RecordedRun, attempt: Attempt, may_go_on: Callable[[], bool]) -> None:
        self.best, self._attempt, self._may_go_on = run, attempt, may_go_on
        self._rule = rule_of(run.violation)

    def tries(self, options: Options, actions: Sequence[Action]) -> bool:
        """Whether it still breaks the rule; it is the best then."""
        if not self._may_go_on():
            return False
        violation, done = self._attempt(options, actions)
        if rule_of(violation) != self._rule:
            return False
        # What had not begun when the rule was broken has no part in it.
        began = set(done)
        kept = [action for action in actions if action in began]
        self.best = RecordedRun(options, kept, violation)
        return True

    def without_actors(self) -> None:
        for actor in sorted({action.actor for action in self.best.actions}):
            rest = [action for action in self.best.actions if action.actor != actor]
            self.tries(self.best.options, rest)

    def without_actions(self) -> None:
        def tries(actions: Sequence[Action]) -> Sequence[Action] | None:
            return self.best.actions if self.tries(self.best.options, actions) else None

        leave_out(self.best.actions, tries, self._may_go_on)

    def without_conditions(self) -> None:
        for change in _simpler(self.best.options):
            simpler = change(self.best.options)
            if simpler != self.best.options:
                self.tries(simpler, self.best.actions)


def leave_out(
    actions: Sequence[Action],
    tries: Callable[[Sequence[Action]], Sequence[Action] | None],
    may_go_on: Callable[[], bool],
) -> Sequence[Action]:
    """The fewest found. `tries(fewer)`: those of them that were done when the rule was broken
    again, None when it was not.

    Groups go from the last to the first: what a rule was broken by is near the end, and what goes
    behind a group changes nothing before it.
    """
    size = max(1, len(actions) // 2)
    while True:
        at = before = len(actions)
        while at > 0:
            start = max(0, at - size)
            fewer = tries([*actions[:start], *actions[at:]])
            actions = actions if fewer is None else fewer
            at = min(start, len(actions))
        if (size == 1 and len(actions) == before) or not may_go_on():
            return actions
        size = max(1, size // 2)


def shrink(run: RecordedRun, attempt: Attempt, may_go_on: Callable[[], bool]) -> RecordedRun:
    """The shortest run found that breaks the same rule; `run` itself when it does not break it
    again.
    """
    shrinking = _Shrinking(run, attempt, may_go_on)
    if not shrinking.tries(run.options, run.actions):
        return run
    shrinking.without_actors()
    before = None
    while before != shrinking.best and may_go_on():
        before = shrinking.best
        shrinking.without_actions()
        shrinking.without_conditions()
    return shrinking.best


def _simpler(options: Options) -> Iterator[Callable[[Options], Options]]:
    """Ways to make options simpler, each for itself."""
    yield _shorter
    yield lambda was: replace(was, conditions=NetworkConditions())
    yield lambda was: replace(was, conditions=replace(was.conditions, slow_chance=0.0))
    for each in fields(options):
        if each.name not in _INHERENT and getattr(options, each.name) is True:
            yield lambda was, name=each.name: replace(was, **{name: False})  # type: ignore[misc]
    for key in options.settings:
        yield lambda was, key=key: replace(was, settings=_without(was.settings, key))  # type: ignore[misc]
    for number, topic in enumerate(options.topics):
        for key in topic.settings:
            yield lambda was, number=number, key=key: _without_setting(was, number, key)  # type: ignore[misc]


def _shorter(options: Options) -> Options:
    return replace(options, seconds=max(1, options.seconds // 2))


def _without(settings: dict[str, str], key: str) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name != key}


def _without_setting(options: Options, number: int, key: str) -> Options:
    topics = list(options.topics)
    topics[number] = replace(topics[number], settings=_without(topics[number].settings, key))
    return replace(options, topics=topics)
