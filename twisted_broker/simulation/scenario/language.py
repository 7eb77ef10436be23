"""The language of scenarios: the lines of a file, and the patterns that they are matched with.

Owns `Line`, `Vocabulary`, `Facts` and the form of a pattern:

    <name>      one word                        <name..>    one word or more
    [...]       is optional                     all else    is literal

1. A line is matched by the first pattern that fits; a line that none fits is an error, which names
   the nearest pattern.
2. A comment begins with #; it is printed with the scenario.
3. A fact begins with the word that names it.

Not here: what the lines do (`machines`, `topics`, `clients`, `facts`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

StepFunction = Callable[..., Any]
_TOKEN = re.compile(r"<(\w+)(\.\.)?>|\[|\]|[^<\[\]]+")


class ScenarioError(Exception):
    """A line that cannot be performed as it is written."""


class Line(NamedTuple):
    """One line that is to be performed.

    `answer`: what it says after `->`, None without; `name`: of a request that goes on meanwhile.
    """

    number: int
    text: str
    words: str
    name: str | None
    answer: str | None


class StepDefinition(NamedTuple):
    """One pattern with what performs it."""

    pattern: str
    meaning: str
    matches: re.Pattern[str]
    function: StepFunction


class Facts(NamedTuple):
    """The facts of one kind of subject.

    `values`: word -> what stands behind it; `states`: each word of a state -> what is the case.
    """

    values: Mapping[str, Callable[[Any], object]]
    states: Mapping[str, Callable[[Any], str]]

    def describe(self, word: str, subject: Any) -> str:
        """The fact under this word, as it is found.

        Raises `ScenarioError` for a word that is no fact.
        """
        self.check(word)
        return (
            self.states[word](subject)
            if word in self.states
            else f"{word} {self.values[word](subject)}"
        )

    def check(self, word: str) -> None:
        """Raises `ScenarioError` for a word that is no fact."""
        known = {*self.values, *self.states}
        if word not in known:
            raise ScenarioError(f"there is no fact `{word}` here, only {', '.join(sorted(known))}")


def joined(numbers: Any) -> str:
    """Numbers of brokers in their order, or `none`."""
    return " ".join(map(str, sorted(numbers))) or "none"


def read_lines(text: str) -> Iterator[Line | str]:
    """The lines of a scenario; comments and empty lines as they are."""
    for number, raw in enumerate(text.splitlines(), 1):
        stripped = raw.strip()
        if not stripped or stripped.startswith("#"):
            yield stripped
            continue
        words, arrow, answer = stripped.partition("->")
        named = re.fullmatch(r"(\w+) = (.*)", words.strip())
        name, said = (named[1], named[2]) if named else (None, words.strip())
        yield Line(number, stripped, said, name, answer.strip() if arrow else None)


class Vocabulary:
    """Patterns in the order in which they were add."""

    def __init__(self) -> None:
        self.words: list[StepDefinition] = []

    def register(self, pattern: str) -> Callable[[StepFunction], StepFunction]:
        """The decorated function performs lines of this form; the first line of its docstring is
        its meaning.
        """

        def add(function: StepFunction) -> StepFunction:
            meaning = (function.__doc__ or "").strip().splitlines()
            self.words.append(
                StepDefinition(
                    pattern,
                    meaning[0] if meaning else "",
                    re.compile(_expression(pattern)),
                    function,
                )
            )
            return function

        return add

    def find(self, words: str) -> tuple[StepFunction, dict[str, str]]:
        """What performs these words, and what they fill its pattern with.

        Raises `ScenarioError`.
        """
        for word in self.words:
            found = word.matches.fullmatch(words)
            if found is not None:
                return word.function, {
                    name: said for name, said in found.groupdict().items() if said is not None
                }
        known = difflib.get_close_matches(words, [word.pattern for word in self.words], 1, 0.0)
        raise ScenarioError(
            f"no step has this form; the nearest is: {known[0] if known else 'nothing'}"
        )

    def help_text(self) -> str:
        """All that can be said."""
        return "\n".join(f"{word.pattern}\n    {word.meaning}" for word in self.words)


def _expression(pattern: str) -> str:
    parts: list[str] = []
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        if text == "[":
            _take_blank(parts)
            parts.append("(?: ")
        elif text == "]":
            parts.append(")?")
        elif token[1]:
            parts.append(
                f"(?P<{token[1]}>\\S+(?: \\S+)*?)" if token[2] else f"(?P<{token[1]}>[^\\s:,]+)"
            )
        else:
            parts.append(re.escape(text).replace("\\ ", " "))
    return "".join(parts)


def _take_blank(parts: list[str]) -> None:
    """The blank before an optional part belongs to that part."""
    if parts and parts[-1].endswith(" "):
        parts[-1] = parts[-1][:-1]
