"""The judge of a soak can say no, and its page shows what it was given; a short run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.page import page
from tests.soak.quorum import common_start, judged
from tests.soak.run import main
from tests.soak.samples import Sample, Series, growing, growth, process_sample


def series(memory: list[float], descriptors: int = 50, threads: int = 4) -> Series:
    return Series(
        "1",
        7,
        [
            Sample(2.0 * number, mib, descriptors, threads, 100.0 * number, 0.05 * number)
            for number, mib in enumerate(memory)
        ],
    )


def test_a_leak_is_found() -> None:
    """60 to 90 MiB, slowly; descriptors, one by one."""
    leaking = series([60 + number / 10 for number in range(300)])
    assert [line.split(":")[1].split(" grew")[0] for line in growing(leaking)] == [" memory"]
    leaking = series([60.0] * 300)
    leaking.samples = [
        each._replace(descriptors=50 + number // 10, threads=4 + number // 50)
        for number, each in enumerate(leaking.samples)
    ]
    assert len(growing(leaking)) == 2


def test_what_is_lost_or_there_twice_or_too_late_is_counted() -> None:
    assert judged([[1, 3, 4], [2, 5]], range(1, 6)) == (0, 0, 0)
    assert judged([[1, 4, 3, 4], [2]], range(1, 6)) == (1, 1, 1)


def test_logs_that_differ_are_found() -> None:
    log = bytes(range(256)) * 8
    assert common_start(log, log + b"more")
    assert not common_start(log, log[:-1] + b"\0")
    assert not common_start(log, b"")


def test_what_is_flat_after_the_warm_up_passes() -> None:
    """However it grew before; and single peaks do not count."""
    warmed = series([min(90.0, 40 + number) for number in range(300)])
    assert growing(warmed) == []
    peaks = series([80.0 + 40 * (number % 50 == 0) for number in range(300)])
    assert growing(peaks) == []
    assert growth([(float(x), 3.0 * x) for x in range(1000)]) == pytest.approx(2997)


def test_the_mean_turn_is_of_the_time_between_two_samples() -> None:
    assert series([1.0] * 3).turn_ms() == [(2.0, pytest.approx(0.5)), (4.0, pytest.approx(0.5))]


def test_a_process_is_looked_at() -> None:
    found = process_sample(os.getpid(), 3.0)
    assert found.seconds == 3.0 and found.memory > 5 and found.descriptors > 2 and found.threads > 0


def test_the_page_has_a_line_for_each_process() -> None:
    text = page("Soak <1>", ["a & b"], [series([50.0, 51.0, 52.0]), series([40.0, 41.0])])
    assert text.count("<polyline") == 8 and "Soak &lt;1&gt;" in text and "a &amp; b" in text
    assert "http" not in text and "<script" not in text


def test_a_run_that_is_all_warm_up_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--minutes", "0.5"])
    assert "--minutes: at least 2, a shorter run" in capsys.readouterr().err


@pytest.mark.clients
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_minutes(tmp_path: Path) -> None:
    page_file = tmp_path / "soak.html"
    assert main(["--minutes", "2", "--page", str(page_file), "--keep", str(tmp_path / "run")]) == 0
    assert page_file.read_text().count("<polyline") >= 4
