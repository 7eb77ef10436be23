"""The language of scenarios, and how a scenario that is not true says so."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from twisted_broker.simulation.scenario.__main__ import (
    ScenarioFailed,
    ScenarioRunner,
    main,
    vocabulary,
)
from twisted_broker.simulation.scenario.language import ScenarioError, Vocabulary, read_lines

OPENING = "# a cluster\n\nbrokers 2\nmake topic t on 2\n"


def failing(*lines: str) -> str:
    with pytest.raises(ScenarioFailed) as failure:
        ScenarioRunner("a_scenario").run(OPENING + "\n".join(lines))
    return str(failure.value)


def test_lines() -> None:
    """Comments are kept, names and answers are taken off."""
    comment, empty, plain, named = read_lines(
        "# why\n\n wait 3 s \np = produce a b -> at 0, and more"
    )
    assert (comment, empty) == ("# why", "")
    assert plain == (3, "wait 3 s", "wait 3 s", None, None)
    assert named == (4, "p = produce a b -> at 0, and more", "produce a b", "p", "at 0, and more")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("put a", {"what": "a"}),
        ("put a b c", {"what": "a b c"}),
        ("put a b on shelf 2", {"what": "a b", "shelf": "2"}),
        ("put a within 3 s", {"what": "a", "seconds": "3"}),
        ("put a on shelf 2 within 3 s", {"what": "a", "shelf": "2", "seconds": "3"}),
    ],
)
def test_patterns(words: str, said: dict[str, str]) -> None:
    """`<name>` is a word, `<name..>` one or more, `[..]` may be left out."""
    known = Vocabulary()
    known.register("put <what..> [on shelf <shelf>] [within <seconds> s]")(lambda: None)
    assert known.find(words)[1] == said


def test_an_unknown_word_is_named_with_the_nearest() -> None:
    with pytest.raises(ScenarioError, match="nearest is: kill <broker>"):
        vocabulary().find("kil 2")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ("produce a", "2: end 2, hw 1"),
            "a_scenario, line 6: 2: end 2, hw 1\n  expected end 2, found end 1",
        ),
        (("produce a -> at 7",), "line 5: produce a -> at 7\n  expected at 7, found at 0"),
        (("produce a to u at 2",), "expected no error, found UNKNOWN_TOPIC_OR_PARTITION"),
        (
            ("soon topic t: leader 1",),
            "not within 60 s: leader 1; expected leader 1, found leader 2",
        ),
        (("for 5 s broker 2: down",), "expected down, found up"),
        (("2: color red",), "there is no fact `color` here"),
        (("kill 9",), "there is no broker 9, only 1, 2"),
        (("p waits",), "no request has the name p"),
        (
            ("p = produce a", "p -> at 0", "p waits"),
            "line 7: p waits\n  expected p to wait, found at 0",
        ),
        (("q = wait 1 s",), "only a request can be given a name"),
        (("brokers 3",), "there is a cluster already"),
        (("elect nobody",), "an election is preferred or unclean, not nobody"),
        (("wait long s",), "ValueError: could not convert string to float: 'long'"),
    ],
)
def test_a_scenario_that_fails(lines: tuple[str, ...], message: str) -> None:
    """Which scenario, which line, what was expected, what was found."""
    assert message in failing(*lines)


def test_a_failure_that_a_broker_logs_fails_the_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    from twisted_broker.replication.partition.partition import Partition

    def broken(self: Partition, required_offset: int) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Partition, "enough_replicas_reached", broken)
    assert "a broker failed: n2 logged" in failing("produce a -> UNKNOWN_SERVER_ERROR")


def test_the_command(tmp_path: Path) -> None:
    """A scenario is printed with what happened; without one the vocabulary is."""
    scenario, out = tmp_path / "short.txt", io.StringIO()
    scenario.write_text(OPENING + "produce a\n2: records a\n2: end 5\n", encoding="utf-8")
    assert main([str(scenario)], out) == 1
    printed = out.getvalue()
    assert (
        "# a cluster" in printed
        and "produce a -> at 0" in printed
        and "2: end 5    <- expected end 5, found end 1" in printed
    )
    assert "FAILED: short, line 7: 2: end 5" in printed
    out = io.StringIO()
    assert main([], out) == 0
    assert "kill <broker>\n    The process is gone" in out.getvalue()
    out = io.StringIO()
    assert main([str(tmp_path / "none.txt")], out) == 2
    assert "no such file" in out.getvalue()
