"""What all tests share: the markers, and the broker's log beside a failure."""

from __future__ import annotations

import signal
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest

# A loaded machine must not fail a test of properties: how long an example takes is no property.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")

MARKERS = (
    "clients: starts real processes and stock clients (seconds each)",
    "spark: starts Spark's JVM (seconds each after the first)",
    "long: minutes; run by `make test-long`",
    "more: what a change must pass beside `make test`; run by `make test-more`",
    "forked: in a fork of the tests' process (tests/simulation/conftest.py)",
)


MORE = (
    "benchmarks",
    "compare",
    "compat/test_cluster_moves.py",
    "compat/test_compaction.py",
    "compat/test_directory_moves.py",
    "compat/test_old_protocol.py",
    "compat/test_operations.py",
    "compat/test_process_cluster.py",
    "compat/test_share_groups.py",
    "faults",
    "hostile",
    "mutants",
    "pipeline/jobs/test_archive_heap.py",
    "pipeline/jobs/test_archive_killed.py",
    "pipeline/jobs/test_file_sizing.py",
    "pipeline/jobs/test_maintain.py",
    "pipeline/sources/test_directories.py",
    "pipeline/test_standalone.py",
    "raft/test_many_seeds.py",
)
"""Of `make test-more`: what takes long, and seldom fails where the rest passes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    more = [here / name for name in MORE]
    for item in items:
        if any(each == item.path or each in item.path.parents for each in more):
            item.add_marker(pytest.mark.more)


def pytest_configure(config: pytest.Config) -> None:
    # What a script starts in its background (`make test &`) ignores Ctrl-C, and so would each
    # process that a test starts and stops by it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    turns = find_spec("twisted_broker.turns")
    if turns is not None and not str(turns.origin).endswith(".py"):
        from tests.opened import open_compiled_classes

        open_compiled_classes()
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.addinivalue_line(
        "filterwarnings", "ignore:(read_text|open_text) is deprecated:DeprecationWarning"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A fixture that has a `log_tail()` shows it when its test fails."""
    report = yield
    if report.failed:
        for name, value in getattr(item, "funcargs", {}).items():
            tail = getattr(value, "log_tail", None)
            if tail is not None:
                report.sections.append((f"log of {name}", tail()))
    return report
