"""What is struck is told with the line that struck it, until it is healed."""

from __future__ import annotations

from typing import Any

import pytest

from twisted_broker.testing.in_force import MOST, STRIKES, InForce, line_of_test, with_line

ENDS = {"one": 1, "other": "client"}
STRUCK: list[tuple[str, dict[str, Any], str, str, dict[str, Any]]] = [
    ("kill", {"node": 2}, "node 2 is killed (t:1)", "restart_broker", {"node": 2}),
    ("stop_broker", {"node": 2}, "node 2 is stopped (t:1)", "restart_broker", {"node": 2}),
    ("crash", {"node": 2}, "node 2 has no power (t:1)", "restart_broker", {"node": 2}),
    ("freeze", {"node": 2}, "node 2 is frozen (t:1)", "thaw", {"node": 2}),
    ("fence", {"node": 2}, "node 2 is fenced (t:1)", "unfence", {"node": 2}),
    ("go_stale", {"node": 2}, "node 2 is stale (t:1)", "catch_up", {"node": 2}),
    ("cut_link", ENDS, "the link of 1 and client is cut (t:1)", "heal_link", ENDS),
    ("delay_link", ENDS, "the link of 1 and client is slow (t:1)", "heal_link", ENDS),
    (
        "calendar",
        {"how": "fix", "at_ms": 0},
        "the calendar stands still (t:1)",
        "calendar",
        {"how": "run"},
    ),
    (
        "strike_disk",
        {"node": 2, "verb": "fill"},
        "the disk of node 2 is full (t:1)",
        "heal_disk",
        {"node": 2},
    ),
    (
        "strike_requests",
        {"api": ["Fetch", "Produce"], "action": "silence"},
        "Fetch, Produce: silence (t:1)",
        "lift_fault",
        {"number": 7},
    ),
]


@pytest.mark.parametrize(("strike", "given", "text", "heal", "again"), STRUCK)
def test_it_is_told_until_it_is_healed(
    strike: str, given: dict[str, Any], text: str, heal: str, again: dict[str, Any]
) -> None:
    found = InForce(lambda node: f"node {node}", lambda number: False)
    assert strike in STRIKES
    found.called(strike, given, 7, "t:1")
    assert found.texts() == [text]
    found.called(heal, {**again, "node": 3} if "node" in again else again, None, "")
    assert found.texts() == ([text] if "node" in again else [])
    found.called(heal, again, None, "")
    assert found.texts() == []


def test_what_one_call_heals_is_told_together() -> None:
    found = InForce(str, lambda number: False)
    for verb in ("fill", "slow"):
        found.called("strike_disk", {"node": 2, "verb": verb}, None, "")
    assert found.next_healing() == (
        ["the disk of 2 is full", "the disk of 2 is slow"],
        "heal_disk",
        {"node": 2},
    )


def test_a_fault_that_is_over_and_those_before_the_last_are_not_told() -> None:
    over: set[int] = set()
    found = InForce(str, over.__contains__)
    for number in range(MOST + 2):
        found.called("strike_requests", {"action": "fail"}, number, "")
    assert found.texts() == ["all requests: fail"] * MOST
    over.update(range(MOST + 1))
    assert len(found.texts()) == 1


def test_the_line_is_of_who_called_and_goes_with_strikes_alone() -> None:
    assert line_of_test().startswith("test_in_force.py:")
    assert with_line("thaw", {"node": 1}) == {"node": 1}
    assert with_line("freeze", {"node": 1})["line"].startswith("test_in_force.py:")
