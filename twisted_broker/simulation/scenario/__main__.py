"""Runs scenarios of replication: text files, one step or one expected fact per line.

Owns the run of one scenario, and the command

    python -m twisted_broker.simulation.scenario FILE    runs it and prints it with the brokers' log
    python -m twisted_broker.simulation.scenario         prints the vocabulary

1. A step is done when its line ends. A request is answered when its line ends, unless it has a
   name: `p = produce a` sends it, `p waits` checks that it is not answered, `p -> at 0` waits for
   the answer.
2. After `->` stand facts that the answer must contain; without `->` the answer must be no error.
3. The first line that fails ends the scenario. The error names scenario, line, expected and found.

Source: RL 1, 2, 6, 8; the scenarios are in tests/scenarios. Not here: the vocabulary (`machines`,
`topics`, `clients`, `facts`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from twisted.internet.defer import Deferred
from twisted.logger import globalLogBeginner

from twisted_broker.simulation.scenario import clients, facts, machines, topics, transactions
from twisted_broker.simulation.scenario.language import Line, ScenarioError, Vocabulary, read_lines
from twisted_broker.simulation.scenario.world import ClientRequest, ScenarioWorld

_STAMP_WIDTH = 12


class ScenarioFailed(AssertionError):
    """A scenario did not happen as it is write_line."""


def vocabulary() -> Vocabulary:
    """All that scenarios can say."""
    words = Vocabulary()
    for part in (machines, topics, clients, transactions, facts):
        part.register(words)
    words.register("<asked> waits")(_waits)
    words.register("<asked>")(_answered)
    return words


def _waits(world: ScenarioWorld, asked: str) -> None:
    """A request that was given a name has no answer yet."""
    answer = _named(world, asked).answer
    if answer is not None:
        raise ScenarioError(f"expected {asked} to wait, found {answer}")


def _answered(world: ScenarioWorld, asked: str) -> ClientRequest:
    """A request that was given a name is waited for now."""
    return _named(world, asked)


def _named(world: ScenarioWorld, name: str) -> ClientRequest:
    if name not in world.requests:
        raise ScenarioError(f"no request has the name {name}")
    return world.requests[name]


class ScenarioRunner:
    """One scenario on its own world. `write_line(text)` gets each line as it happens."""

    def __init__(self, name: str, write_line: Callable[[str], object] | None = None) -> None:
        self.name = name
        self.words = vocabulary()
        self._write_line = write_line

    def run(self, text: str) -> None:
        """Raises `ScenarioFailed` at the first line that is not as write_line."""
        with ScenarioWorld(wanted=self._write_line is not None) as world:
            for line in read_lines(text):
                if isinstance(line, str):
                    self._write(f"{'':{_STAMP_WIDTH}}{line}".rstrip())
                    continue
                try:
                    found = self._run_line(world, line)
                    world.check()
                except (ScenarioError, ValueError, KeyError) as error:
                    self._print_line(world, f"{line.text}    <- {error}")
                    raise ScenarioFailed(
                        f"{self.name}, line {line.number}: {line.text}\n  {_why(error)}"
                    ) from None
                self._print_line(
                    world,
                    line.text
                    if not found or line.answer is not None
                    else f"{line.text} -> {found}",
                )

    def _run_line(self, world: ScenarioWorld, line: Line) -> str:
        function, said = self.words.find(line.words)
        result: Any = function(world, **said)
        if isinstance(result, Deferred):
            result = ClientRequest(result)
        if line.name is not None:
            if not isinstance(result, ClientRequest):
                raise ScenarioError("only a request can be given a name")
            world.requests[line.name] = result
            return ""
        return self._await_answer(world, line, result) if isinstance(result, ClientRequest) else ""

    @staticmethod
    def _await_answer(world: ScenarioWorld, line: Line, asked: ClientRequest) -> str:
        world.until(lambda: asked.answer is not None, "an answer")
        answer = str(asked.answer)
        if line.answer is None and clients.is_error(answer):
            raise ScenarioError(f"expected no error, found {answer}")
        found = answer.split(", ")
        missing = [fact for fact in (line.answer or "").split(", ") if fact and fact not in found]
        if missing:
            raise ScenarioError(f"expected {', '.join(missing)}, found {answer}")
        return answer

    def _print_line(self, world: ScenarioWorld, text: str) -> None:
        if self._write_line is not None:
            for happened in world.new_log_lines():
                self._write_line(happened)
            self._write(f"{world.now:9.3f}   {text}")

    def _write(self, text: str) -> None:
        if self._write_line is not None:
            self._write_line(text)


def _why(error: Exception) -> str:
    return str(error) if isinstance(error, ScenarioError) else f"{type(error).__name__}: {error}"


def run_scenario(path: Path, write_line: Callable[[str], object] | None = None) -> None:
    """Performs the scenario in a file. Raises `ScenarioFailed`."""
    ScenarioRunner(path.stem, write_line).run(path.read_text(encoding="utf-8"))


def main(arguments: list[str], out: TextIO = sys.stdout) -> int:
    """See the card. 1 when a scenario failed, 2 when it is not there."""
    if not arguments:
        out.write(vocabulary().help_text() + "\n")
        return 0
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)
    for name in arguments:
        path = Path(name)
        if not path.is_file():
            out.write(f"{name}: no such file; scenarios are in tests/scenarios\n")
            return 2
        try:
            run_scenario(path, lambda text: out.write(text + "\n"))
        except ScenarioFailed as failed:
            out.write(f"FAILED: {failed}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
