"""What `python -m tests.faults.run` takes, and what it says at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.run import main
from tests.faults.summary import Summary
from twisted_broker.simulation.checks.anomalies import NAMES


def test_a_directory_with_something_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run would mix its histories with those that lie there."""
    (tmp_path / "old").touch()
    with pytest.raises(SystemExit) as refused:
        main(["--keep", str(tmp_path)])
    assert refused.value.code == 2
    assert f"--keep {tmp_path}: not empty; name a new directory" in capsys.readouterr().err


def test_an_unknown_kind_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--kind", "earthquake"])
    assert refused.value.code == 2
    assert "kill-leader" in capsys.readouterr().err


def test_a_summary_counts_what_was_found_and_how_leadership_moved() -> None:
    """Median and worst of each way in which a leader goes; problems and replaced clients last."""
    summary = Summary(
        rounds=3,
        acknowledged=1234,
        polled=5678,
        anomalies=dict.fromkeys(NAMES, 0) | {"duplicate": 2},
    )
    summary.moves = [("kill", 2.5), ("kill", 2.75), ("handover", 0.125), ("kill", 3.0)]
    summary.replaced, summary.problems = (
        ["aiokafka-reader ended with status 1"],
        ["duplicate in t-0: ..."],
    )
    assert summary.lines() == [
        "1,234 records acknowledged, 5,678 polled; anomalies: 2 duplicate",
        "leadership after a kill (session time-out 2.5 s): median 2.75 s, worst 3.00 s of 3",
        "leadership after a handover (controlled shutdown): median 0.12 s, worst 0.12 s of 1",
        "client replaced: aiokafka-reader ended with status 1",
        "duplicate in t-0: ...",
    ]
    assert Summary(anomalies=dict.fromkeys(NAMES, 0)).lines() == [
        "0 records acknowledged, 0 polled; anomalies: none"
    ]
