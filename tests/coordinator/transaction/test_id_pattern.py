"""Patterns over ids: as `re` decides, but never slowly."""

import re
from random import Random

import pytest

from twisted_broker.coordinator.transaction import id_pattern
from twisted_broker.coordinator.transaction.id_pattern import LONGEST, IdPattern

SAME = [
    "",
    "abc",
    "a.c",
    "a*",
    "a+b?c*",
    "(ab|cd)+",
    "(?:ab|)c",
    "x{2}",
    "x{2,}",
    "x{1,3}y",
    "(a|b){2,3}",
    "[a-c]+",
    "[^a-c]+",
    "[]a]+",
    "[a-]+",
    r"[\d_]+",
    r"[\D]+",
    r"[^\D]x",
    r"[\W\d]+",
    r"\d+-\w+",
    r"\D\W\S",
    r"\s+",
    r"a\.b\*",
    r"\x61b",
    "^abc$",
    "a^b",
    "(^a|b$)+",
    "(?P<name>ab)+",
    "(?i)AbC",
    "(?s)a.c",
    "(?i)[a-c]+",
    "a|b|",
    "((a*)*)*b",
    "a{,3}",
    "{",
    "a*?b+?c??",
    r"\Aabc",
]


@pytest.mark.parametrize("pattern", SAME)
def test_as_pythons_own(pattern: str) -> None:
    random = Random(pattern)
    ours, theirs = IdPattern(pattern), re.compile(pattern.replace("a{,3}", "a\\{,3\\}"), re.ASCII)
    texts = {"", "abc", "abcabc", "aXc", "a\nc", "ABC", "aBC", "xx", "xxy", "1-a", "a.b*", "{"}
    texts |= {
        "".join(random.choices("abcdxy1_-. ]{,3}", k=random.randrange(8))) for _ in range(300)
    }
    for text in sorted(texts):
        assert ours.matches(text) is (theirs.fullmatch(text) is not None), text


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"\Qa.b\E+", "a.bb", "axb"),
        (r"[[:alpha:]]+[[:digit:]]", "ab1", "1ab"),
        (r"\x{e9}\xe9", "éé", "e"),
        (r"\Aabc\z", "abc", "abcd"),
        (r"(?<name>a)b", "ab", "a"),
    ],
)
def test_what_only_re2_knows(pattern: str, matching: str, other: str) -> None:
    assert IdPattern(pattern).matches(matching)
    assert not IdPattern(pattern).matches(other)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "[a",
        "[",
        "[b-a]",
        "*a",
        "a**",
        "a+*",
        "\\",
        r"\1",
        r"\b",
        r"\pL",
        "(?=a)",
        "(?<!a)b",
        "(?P<1>a)",
        "(?m)a",
        "x{3,2}",
        "x{1001}",
        "(x{1000}){1000}",
        "((((" * 20,
        r"\xZZ",
        r"\x{110000}",
        r"\x{61",
        "[[:nothing:]]",
        "a" * (LONGEST + 1),
    ],
)
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        IdPattern(pattern)


def test_no_pattern_is_slow() -> None:
    """What takes a backtracking matcher for ever takes a step for each character."""
    pattern = IdPattern("(a|aa|a?b?)*(a*)*c")
    assert not pattern.matches("a" * 20_000)
    assert pattern.matches("a" * 20_000 + "c")


def test_a_long_walk_pauses_and_its_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worst that fits: hundreds of states at once, another set after every character."""
    pattern = IdPattern("(a|b)*a(a|b){90}")
    random = Random(1)
    text = "".join(random.choices("ab", k=500))
    assert sum(1 for _ in pattern.steps(text)) > 20
    assert pattern.matches(text) is (text[-91] == "a")
    monkeypatch.setattr(id_pattern, "MOST_REMEMBERED", 100)
    assert not pattern.matches("b" * 200 + text[:90])
    pattern.matches(text[::-1])
    assert len(pattern._after) <= 100
