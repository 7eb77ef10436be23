"""`--brokers 3 --processes`: real processes under stock clients."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.compat.broker_process import BrokerProcess
from tests.compat.cluster_processes import View

ALL = {1, 2, 3}
SETTINGS = {"broker.session.timeout.ms": "1500", "broker.heartbeat.interval.ms": "200"}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    made = BrokerProcess(
        tmp_path / "three", settings=SETTINGS, more=["--brokers", "3", "--processes"]
    )
    try:
        yield made
    finally:
        made.kill()
        if made.run_file.exists():
            for pid in pids(made).values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def pids(process: BrokerProcess) -> dict[int, int]:
    brokers: Any = process.run()["brokers"]
    return {int(node): entry["pid"] for node, entry in brokers.items() if "pid" in entry}


def all_gone(found: dict[int, int]) -> bool:
    return not any(map(lives, found.values()))


def lives(pid: int) -> bool:
    """One that nobody reaps yet has ended, too."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def active_controller(process: BrokerProcess) -> int:
    """As the log says it of the newest epoch."""
    found = re.findall(r"controller active controller=(\d) epoch=(\d+)", process.log.read_text())
    return max((int(epoch), int(node)) for node, epoch in found)[1]


def test_the_controller_that_is_killed_comes_back_and_all_end_in_order(
    process: BrokerProcess, topic: str
) -> None:
    """acks=all to three processes; that of the active controller is killed: records flow on, and
    topics are created, within the seconds of an election; it is started again on its port, and
    back in the ISR with every record; probes answer for each; SIGTERM ends node 1 last, and leaves
    nothing; the directory then starts in one process.
    """
    process.start()
    before = pids(process)
    view = View(process.bootstrap)
    view.create(topic, min_insync_replicas="2")
    view.until(lambda: view.in_sync(topic) == ALL, "all in sync")
    with view.producing(topic) as writer:
        view.until(writer.progress(), "records flow")
        killed = active_controller(process)
        os.kill(before[killed], signal.SIGKILL)
        since = time.monotonic()
        view.create(f"{topic}-next", partitions=1, replicas=2)
        print(f"the next topic was there {time.monotonic() - since:.2f} s after the kill")
        assert process.log.read_text().count("controller active") > 1
        view.until(lambda: killed not in view.in_sync(topic), "it left the ISR")
        view.until(writer.progress(), "records flow without it")
        view.until(lambda: view.in_sync(topic) == ALL, "it is back in the ISR")
    view.check_once(writer)
    after = pids(process)
    assert {node for node in ALL if after[node] != before[node]} == {killed}
    assert str(process.run()["bootstrap"]) == process.bootstrap
    for address in str(process.run()["status"]).split(","):
        with urllib.request.urlopen(f"http://{address}/readyz") as answer:
            assert answer.status == 200
    process.stop()
    assert not process.run_file.exists() and all_gone(after)
    log = process.log.read_text()
    assert f"replog node {killed} ended: signal 9 (SIGKILL); it starts again in 1 s" in log
    ends = [log.rindex(f" replog#info] replog node {node} stopped") for node in (3, 2, 1)]
    assert max(ends[:2]) < ends[2] and " ended: exit" not in log
    process.more, process.port = ["--brokers", "3"], 0
    process.start()
    again = View(process.bootstrap)
    assert len(again.values(topic, set(writer.acknowledged))) == len(writer.acknowledged)


def test_no_process_outlives_the_parent(process: BrokerProcess) -> None:
    """Killed, it can end none of them: they end by themselves, their logs closed cleanly."""
    process.start()
    left = pids(process)
    process.kill()
    deadline = time.monotonic() + 20
    while not all_gone(left):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    for node in ALL:
        assert (Path(process.data) / f"broker-{node}" / ".kafka_cleanshutdown").exists()
