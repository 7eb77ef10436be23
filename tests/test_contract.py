"""Every line of the contract is pinned by a test that names it (docs/REPLICA_LAYER.md).

Reads the numbered lines of the contract, the docstrings of all tests and the comments of all
scenarios. A bullet of a section without numbers counts as a line: the third of section 9 is
`RL 9.3`. Lines are named as `RL 1.9`, `RL 2.5, 6.6` or `RL 1.3-1.5`; a card of a module pins none.
Not here: whether a test fails without the behaviour that it names (reviewers try that, and
`make mutants`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

Line = tuple[int, int]

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
CONTRACT = ROOT / "docs" / "REPLICA_LAYER.md"
SCENARIOS = sorted((TESTS / "scenarios").glob("*.txt"))
_NAMED = re.compile(r"RL ((?:\d+\.\d+)(?:(?:, | and |-| to |-RL |, RL )\d+\.\d+)*)")
_RANGE = re.compile(r"(\d+)\.(\d+)(?:(?:-| to |-RL )(\d+)\.(\d+))?")
_SECTION = re.compile(r"RL \d+(?![\d.]*\.\d)")
_RULES = {"rule", "invariant", "initialize"}


class Pin(NamedTuple):
    """A test or a scenario, and the lines that it names."""

    path: Path
    name: str
    lines: frozenset[Line]


def contract_lines(text: str) -> dict[Line, str]:
    """Each numbered line (or bullet) of a section, as one line of text."""
    found: dict[Line, str] = {}
    section = bullet = -1
    for row in text.splitlines():
        if heading := re.match(r"## (\d+)\. ", row):
            section, bullet = int(heading[1]), 0
        elif (line := re.match(r"(\d+|-)\.? (.*)", row)) and section >= 0:
            bullet = bullet + 1 if line[1] == "-" else int(line[1])
            found[section, bullet] = line[2]
        elif row.startswith("  ") and (section, bullet) in found:
            found[section, bullet] += " " + row.strip()
    return found


def named_lines(text: str) -> Iterator[Line]:
    """The lines that a docstring or a comment names, ranges spelled out."""
    for names in _NAMED.finditer(" ".join(text.split())):
        for first in _RANGE.finditer(names[1]):
            section, number = int(first[1]), int(first[2])
            last = int(first[4]) if first[4] and int(first[3]) == section else number
            yield from ((section, each) for each in range(number, last + 1))


def named_sections(text: str) -> list[str]:
    """Names of whole sections (`RL 9`): they pin nothing, and look as if they did."""
    return _SECTION.findall(" ".join(text.split()))


def pins_of_tests(path: Path) -> Iterator[Pin]:
    """The test functions of a module, and the rules and invariants of its state machines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and (
            node.name.startswith("test_")
            or _RULES.intersection(map(_decorator, node.decorator_list))
        ):
            lines = frozenset(named_lines(ast.get_docstring(node) or ""))
            yield Pin(path, node.name, lines)


def _decorator(node: ast.expr) -> str:
    named = node.func if isinstance(node, ast.Call) else node
    return named.id if isinstance(named, ast.Name) else getattr(named, "attr", "")


def comments_of(scenario: str) -> str:
    return "\n".join(row.lstrip("# ") for row in scenario.splitlines() if row.startswith("#"))


def pins_of_scenario(path: Path) -> Pin:
    return Pin(path, path.name, frozenset(named_lines(comments_of(path.read_text()))))


@cache
def pins() -> tuple[Pin, ...]:
    """All of them; a scenario is run by `tests/scenarios/test_scenarios.py`."""
    tests = [pin for path in sorted(TESTS.rglob("test_*.py")) for pin in pins_of_tests(path)]
    return (*tests, *map(pins_of_scenario, SCENARIOS))


def test_every_line_is_pinned_by_a_test_that_names_it() -> None:
    """The lines that no test names: there must be none."""
    lines = contract_lines(CONTRACT.read_text())
    named = {line for pin in pins() for line in pin.lines}
    missing = [
        f"RL {section}.{number}: {lines[section, number][:80]}"
        for section, number in sorted(lines.keys() - named)
    ]
    assert missing == []


def test_names_are_those_of_lines() -> None:
    """In tests, scenarios and cards: a line that is not there, or a whole section in a test,
    would be taken for a pin.
    """
    lines = contract_lines(CONTRACT.read_text())
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        if path != Path(__file__):
            wrong += [(path.name, name) for name in named_sections(path.read_text())]
    for path in SCENARIOS:
        wrong += [(path.name, name) for name in named_sections(comments_of(path.read_text()))]
    for path in [*ROOT.glob("twisted_broker/**/*.py"), *TESTS.rglob("*.py"), *SCENARIOS]:
        if path != Path(__file__):
            wrong += [
                (path.name, f"RL {section}.{number}")
                for section, number in set(named_lines(path.read_text())) - lines.keys()
            ]
    assert wrong == []


def test_how_lines_and_names_are_read() -> None:
    """Numbered lines, bullets, lists and ranges; sections; rules and scenarios, but no helpers."""
    text = "text\n## 1. A\n1. one\n   more\n2. two\n## 9. C\n- first\n- second\n"
    assert contract_lines(text) == {
        (1, 1): "one more",
        (1, 2): "two",
        (9, 1): "first",
        (9, 2): "second",
    }
    assert list(named_lines("RL 1.3, 6.6: x; RL 2.1-2.3. RL 4.1\n and 4.3, RL 8.")) == [
        (1, 3),
        (6, 6),
        (2, 1),
        (2, 2),
        (2, 3),
        (4, 1),
        (4, 3),
    ]
    assert named_sections("RL 9: x (RL 1, 2), RL 1.12 and RL 3.") == ["RL 9", "RL 1", "RL 3"]
    assert comments_of("# RL 6.3: a\n#   b\n\nkill 2\n") == "RL 6.3: a\nb"


def test_whose_names_count(tmp_path: Path) -> None:
    """Tests and the rules of state machines; a fixture or a helper is no test."""
    module = tmp_path / "test_it.py"
    module.write_text(
        'def test_a():\n    """RL 1.1."""\n'
        '@pytest.fixture\ndef made():\n    """RL 1.2."""\n'
        'class Machine:\n    @rule(n=1)\n    def act(self):\n        """RL 1.3."""\n'
        '    @invariant()\n    def holds(self):\n        """RL 1.4."""\n'
        'def helper():\n    """RL 1.5."""\n'
    )
    found = {pin.name: set(pin.lines) for pin in pins_of_tests(module)}
    assert found == {"test_a": {(1, 1)}, "act": {(1, 3)}, "holds": {(1, 4)}}
