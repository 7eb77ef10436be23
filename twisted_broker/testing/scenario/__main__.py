"""Stories of replication, told in plain lines and performed by production code.

Owns the performance of one story, and the command

    python -m twisted_broker.testing.scenario.__main__ FILE      performs it and prints it with what
    happened
    python -m twisted_broker.testing.scenario.__main__           prints the vocabulary

1. A line that does something is done when it was said; a request is waited for, unless it was given
   a name: `p = produce a`, then `p waits`, and at last `p -> at 0`.
2. After `->` stand facts of the answer that must be there; without it an answer must not be an
   error.
3. The first line that fails ends the story: which story, which line, what was expected and what was
   found.

Source: RL 1, 2, 6, 8; the stories are in tests/scenarios. Leaves out: the vocabulary
(`scenario_*`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from twisted.internet.defer import Deferred
from twisted.logger import globalLogBeginner

from twisted_broker.testing.scenario import clients, facts, machines, topics
from twisted_broker.testing.scenario.language import Line, ScenarioError, Vocabulary, read_lines
from twisted_broker.testing.scenario.stage import Asked, Stage

_STAMP_WIDTH = 12


class ScenarioFailed(AssertionError):
    """A story did not happen as it is told."""


def vocabulary() -> Vocabulary:
    """All that stories can say."""
    words = Vocabulary()
    for part in (machines, topics, clients, facts):
        part.teach(words)
    words.teach("<asked> waits")(_waits)
    words.teach("<asked>")(_answered)
    return words


def _waits(stage: Stage, asked: str) -> None:
    """A request that was given a name has no answer yet."""
    answer = _named(stage, asked).answer
    if answer is not None:
        raise ScenarioError(f"expected {asked} to wait, found {answer}")


def _answered(stage: Stage, asked: str) -> Asked:
    """A request that was given a name is waited for now."""
    return _named(stage, asked)


def _named(stage: Stage, name: str) -> Asked:
    if name not in stage.asked:
        raise ScenarioError(f"nothing was asked under the name {name}")
    return stage.asked[name]


class Performance:
    """One story on its own stage. `told(text)` gets each line as it happens."""

    def __init__(self, name: str, told: Callable[[str], object] | None = None) -> None:
        self.name = name
        self.words = vocabulary()
        self._told = told

    def perform(self, text: str) -> None:
        """Raises `ScenarioFailed` at the first line that is not as told."""
        with Stage(wanted=self._told is not None) as stage:
            for line in read_lines(text):
                if isinstance(line, str):
                    self._tell(f"{'':{_STAMP_WIDTH}}{line}".rstrip())
                    continue
                try:
                    found = self._perform(stage, line)
                    stage.check()
                except (ScenarioError, ValueError, KeyError) as error:
                    self._print(stage, f"{line.text}    <- {error}")
                    raise ScenarioFailed(
                        f"{self.name}, line {line.number}: {line.text}\n  {_why(error)}"
                    ) from None
                self._print(
                    stage,
                    line.text
                    if not found or line.answer is not None
                    else f"{line.text} -> {found}",
                )

    def _perform(self, stage: Stage, line: Line) -> str:
        verb, said = self.words.find(line.words)
        result: Any = verb(stage, **said)
        if isinstance(result, Deferred):
            result = Asked(result)
        if line.name is not None:
            if not isinstance(result, Asked):
                raise ScenarioError("only a request can be given a name")
            stage.asked[line.name] = result
            return ""
        return self._settle(stage, line, result) if isinstance(result, Asked) else ""

    @staticmethod
    def _settle(stage: Stage, line: Line, asked: Asked) -> str:
        stage.until(lambda: asked.answer is not None, "an answer")
        answer = str(asked.answer)
        if line.answer is None and clients.is_error(answer):
            raise ScenarioError(f"expected no error, found {answer}")
        found = answer.split(", ")
        missing = [fact for fact in (line.answer or "").split(", ") if fact and fact not in found]
        if missing:
            raise ScenarioError(f"expected {', '.join(missing)}, found {answer}")
        return answer

    def _print(self, stage: Stage, text: str) -> None:
        if self._told is not None:
            for happened in stage.happenings():
                self._told(happened)
            self._tell(f"{stage.now:9.3f}   {text}")

    def _tell(self, text: str) -> None:
        if self._told is not None:
            self._told(text)


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, ScenarioError) else f"{type(error).__name__}: {error}"


def perform(path: Path, told: Callable[[str], object] | None = None) -> None:
    """Performs the story in a file. Raises `ScenarioFailed`."""
    Performance(path.stem, told).perform(path.read_text(encoding="utf-8"))


def main(arguments: list[str], out: TextIO = sys.stdout) -> int:
    """See the card. 1 when a story failed, 2 when it is not there."""
    if not arguments:
        out.write(vocabulary().page() + "\n")
        return 0
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    for name in arguments:
        path = Path(name)
        if not path.is_file():
            out.write(f"{name}: no such file; stories are in tests/scenarios\n")
            return 2
        try:
            perform(path, lambda text: out.write(text + "\n"))
        except ScenarioFailed as failed:
            out.write(f"FAILED: {failed}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
