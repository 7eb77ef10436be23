"""Patterns over ids: as `re` decides, but never slowly."""

import re
import sys
from contextlib import suppress
from random import Random

import pytest

from twisted_broker import linear_pattern
from twisted_broker.linear_pattern import LONGEST, LinearPattern

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
    "a{01}",
    "(){1000}",
    "(a{0}){1000}b",
    "((a{0,0}|){3}){4}c?",
    "((a){1}){1}",
    "(^){2}a|($){3}",
    "{",
    "a*?b+?c??",
    r"\Aabc",
]


@pytest.mark.parametrize("pattern", SAME)
def test_as_pythons_own(pattern: str) -> None:
    random = Random(pattern)
    ours, theirs = (
        LinearPattern(pattern),
        re.compile(re.sub(r"{(,3|01)}", r"\\{\1\\}", pattern), re.ASCII),
    )
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
        ("(?i)k", "\u212a", "\u0130"),
        ("(?i)[A-Z]", "s", "ß"),
        ("(?i)[a-z]", "S", "\u0130"),
        ("a{２}", "a{２}", "aa"),
        ("[b-fa-cx]+", "abcdefx", "ag"),
    ],
)
def test_what_only_re2_knows(pattern: str, matching: str, other: str) -> None:
    assert LinearPattern(pattern).matches(matching)
    assert not LinearPattern(pattern).matches(other)


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
        "a{1}{1}",
        "{2}a",
        "a|{1,}",
        "a*{2}",
        "a{2}??",
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
        LinearPattern(pattern)


def nested(inside: str, count: str, depth: int) -> str:
    return "(" * depth + inside + f"){{{count}}}" * depth


COSTLY = [
    nested("", "1000", 4),
    nested("", "1000", 40),
    nested("a{0}", "1000", 20),
    nested("a{0,0}|", "1000", 20),
    nested("(){7}|(){8}|", "1,1000", 20),
    nested("a", "1,1000", 20),
    nested("a", "1000", 20),
    nested("a", "1", 45) * 8,
    nested("a", "0,1", 45) * 6,
    nested("a|b", "2,", 40),
    "(a" + "()" * 480 + "){250}",
    "(a" + "(){1000}" * 120 + "){250}",
    "()" * 500,
    "|" * 1_000,
    "(" * 49 + ")" * 49,
    "(|){1000}" * 100,
    "a{1000}" * 140,
    "[" + "a-b" * 300 + "]{290}",
    "[" + r"\W\D\S" * 150 + "]{290}",
    "[" + "[:punct:]" * 100 + "]{250}",
    r"\Q" + "a" * 290 + r"\E",
    "{" * 1_000,
    "{1" * 500,
    "(?i)" * 240,
    "(?P<" * 240,
    r"\x{" * 330,
    "a{" + "9" * 990 + "}",
]


@pytest.mark.parametrize("pattern", COSTLY, ids=lambda pattern: pattern[:24])
def test_the_work_of_a_pattern_is_bounded_before_it_is_done(pattern: str) -> None:
    """Repetitions of what is empty multiply work without making a node. Calls are counted: their
    number is no matter of the machine.
    """
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if calls > 60_000:
            raise OverflowError(pattern)

    sys.setprofile(count)
    try:
        with suppress(ValueError):
            LinearPattern(pattern)
    finally:
        sys.setprofile(None)


def test_no_pattern_is_slow() -> None:
    """What takes a backtracking matcher for ever takes a step for each character."""
    pattern = LinearPattern("(a|aa|a?b?)*(a*)*c")
    assert not pattern.matches("a" * 20_000)
    assert pattern.matches("a" * 20_000 + "c")


def test_a_long_walk_pauses() -> None:
    """The worst that fits: hundreds of states at once, another set after every character."""
    pattern = LinearPattern("(a|b)*a(a|b){90}")
    text = "".join(Random(1).choices("ab", k=500))
    assert sum(1 for _ in pattern.steps(text)) > 20
    assert pattern.matches(text) is (text[-91] == "a")


def test_many_walks_pause_together() -> None:
    """Neither ids of which each is quick, nor long ones whose states are all remembered, hold
    others up.
    """
    pattern = LinearPattern("(a|b)*a(a|b){90}")
    random = Random(2)
    short = ["".join(random.choices("ab", k=30)) for _ in range(100)]
    assert sum(1 for text in short for _ in pattern.steps(text)) > 10
    pattern = LinearPattern(".*b")
    assert sum(1 for _ in range(20) for _ in pattern.steps("a" * 32_767)) > 15


def test_the_memory_of_a_walk_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the nodes of the sets that it remembers: a set may have hundreds."""
    monkeypatch.setattr(linear_pattern, "MOST_REMEMBERED", 5_000)
    pattern = LinearPattern("(a|b)*a(a|b){90}")
    text = "".join(Random(1).choices("ab", k=500))
    for ending in ("a" * 91, "b" * 91):
        assert pattern.matches(text + ending) is (ending[0] == "a")
        assert (
            sum(len(state) for state in pattern._after.values()) < 5_000 + linear_pattern.MOST_NODES
        )
