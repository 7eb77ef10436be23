"""Every line of the contract is pinned by a test that names it (issue 4; docs/REPLICA_LAYER.md).

Reads the numbered lines of the sections that are built, and the docstrings of all tests. A bullet
of a section without numbers counts as a line: the third of section 9 is `RL 9.3`. A test names
lines as `RL 1.9`, `RL 2.5, 6.6` or `RL 1.3-1.5`; a card of a module names none. What a later issue
builds stands in `LATER` (lines) and `LATER_PARTS` (words of lines), with the reason. Not here:
whether a test pins what it names (reviewers read that).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONTRACT = ROOT / "docs" / "REPLICA_LAYER.md"
SECTIONS = (0, 1, 2, 4, 5, 6, 8, 9)
LATER = {
    (0, 2): "ZooKeeper: a later issue",
    (5, 3): "quotas: a later issue (issue 4 asks for 5.1 and 5.2)",
}
LATER_PARTS = {
    (1, 1): {
        "one fetcher manager for moves between directories": "directory moves",
        "`controller_epoch`": "ZooKeeper",
    },
    (1, 2): {"With ZooKeeper": "ZooKeeper"},
    (1, 3): {
        "LeaderAndIsr with an older controller epoch": "ZooKeeper",
        "transaction coordinators": "transactions",
    },
    (1, 5): {"when asked": "ZooKeeper's StopReplica; of a metadata delta the log always goes"},
    (1, 8): {"the future local replica": "directory moves", "A follower throttled": "quotas"},
    (1, 9): {"not for a throttled follower": "quotas"},
    (2, 5): {"ZooKeeper: compare-and-set": "ZooKeeper"},
    (6, 2): {"not over the follower quota while lagging": "quotas"},
    (6, 4): {"quotas": "quotas"},
    (9, 2): {"compacted: the same last value": "compaction"},
    (9, 4): {"read_committed shows": "transactions"},
}
"""Words of a line that no test holds yet, and which later issue builds them."""
Line = tuple[int, int]
_NAMED = re.compile(r"RL ((?:\d+\.\d+)(?:(?:, | and |-| to |-RL |, RL )\d+\.\d+)*)")
_RANGE = re.compile(r"(\d+)\.(\d+)(?:(?:-| to |-RL )(\d+)\.(\d+))?")


def contract_lines(text: str, sections: tuple[int, ...] = SECTIONS) -> dict[Line, str]:
    """Each numbered line (or bullet) of `sections`, as one line of text."""
    found: dict[Line, str] = {}
    section = bullet = -1
    for row in text.splitlines():
        if heading := re.match(r"## (\d+)\. ", row):
            section, bullet = int(heading[1]), 0
        elif (line := re.match(r"(\d+|-)\.? (.*)", row)) and section in sections:
            bullet = bullet + 1 if line[1] == "-" else int(line[1])
            found[section, bullet] = line[2]
        elif row.startswith("  ") and (section, bullet) in found:
            found[section, bullet] += " " + row.strip()
    return found


def named_lines(text: str) -> Iterator[Line]:
    """The lines that a docstring names, ranges spelled out."""
    for names in _NAMED.finditer(text):
        for first in _RANGE.finditer(names[1]):
            section, number = int(first[1]), int(first[2])
            last = int(first[4]) if first[4] and int(first[3]) == section else number
            yield from ((section, each) for each in range(number, last + 1))


def docstrings_of_tests(path: Path) -> Iterator[str]:
    """Of test functions, and of the rules and invariants of state machines (methods with a
    docstring).
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and (
            node.name.startswith("test_") or node.decorator_list
        ):
            yield ast.get_docstring(node) or ""


def test_every_line_is_pinned_by_a_test_that_names_it() -> None:
    """Issue 4: the lines that no test names; it must be empty."""
    lines = contract_lines(CONTRACT.read_text())
    named = {
        line
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for doc in docstrings_of_tests(path)
        for line in named_lines(doc)
    }
    missing = [
        f"RL {section}.{number}: {lines[section, number][:80]}"
        for section, number in sorted(lines.keys() - named - LATER.keys())
    ]
    assert missing == []


def test_what_is_left_for_later_is_in_the_contract() -> None:
    """An exception for what is not there would hide nothing, or the wrong thing."""
    lines = contract_lines(CONTRACT.read_text())
    assert LATER.keys() <= lines.keys()
    gone = [
        (line, words)
        for line, parts in LATER_PARTS.items()
        for words in parts
        if words not in lines[line]
    ]
    assert gone == []


def test_how_lines_and_names_are_read() -> None:
    """Numbered lines, bullets, lists and ranges."""
    text = "## 1. A\n1. one\n   more\n2. two\n## 2. B\n1. left out\n## 9. C\n- first\n- second\n"
    assert contract_lines(text, (1, 9)) == {
        (1, 1): "one more",
        (1, 2): "two",
        (9, 1): "first",
        (9, 2): "second",
    }
    assert list(named_lines("RL 1.3, 6.6: x; RL 2.1-2.3. RL 4.1 and 4.3, RL 8.")) == [
        (1, 3),
        (6, 6),
        (2, 1),
        (2, 2),
        (2, 3),
        (4, 1),
        (4, 3),
    ]
