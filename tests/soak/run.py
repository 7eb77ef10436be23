"""`python -m tests.soak.run --minutes N`: three brokers that are controllers, too, stock clients of
three kinds, groups, a topic under retention, rolling restarts and kills.

1. Broker 1 runs from the beginning to the end: after the warm-up its memory, descriptors, threads
   must be flat. The others are restarted and killed in turn, the active controller among them.
   With one controller apart that one runs to the end as well.
2. All that was acknowledged is found, by the judge of the faults (`tests/faults`), in periods of
   `PERIOD_MINUTES`: the topic is deleted and made anew for each, so that neither the judge's
   memory nor the disk grows.
3. No turn of a reactor is longer than 200 ms (`tests/faults/slow_turns.py`).
4. What was measured is drawn into a page.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random

from tests.faults.asking import delete_topic
from tests.faults.client_processes import ClientProcesses
from tests.faults.cluster import Cluster
from tests.faults.relay import Relays
from tests.faults.rounds import PARTITIONS, TOPIC, Run
from tests.faults.slow_turns import is_machine_idle, slow_turns, too_slow
from tests.faults.summary import Summary
from tests.soak.in_thread import InThread
from tests.soak.page import page
from tests.soak.samples import Sampler, growing

PERIOD_MINUTES, SHORTEST_MINUTES = 10.0, 2.0
QUIET_SECONDS = 15.0
RESTARTED = ("2", "3")
CHURN, CHURN_PARTITIONS = "churn", 2
SEGMENT_BYTES, RETAINED_BYTES = 1 << 20, 8 << 20
_RECORDS, _RECORD_BYTES, _PACE_SECONDS = 100, 1000, 0.1
_SETTINGS = {"log.retention.check.interval.ms": "5000"}
_GONE, _UNKNOWN_TOPIC = 0, 3


class Churn(InThread):
    """A producer that fills a topic under retention, a megabyte a second. Use as a context."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__("churn")
        self._bootstrap = bootstrap
        self.acknowledged = self.failed = 0

    def run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "linger.ms": 50, "acks": "1", "log_level": 2}
        )
        value = Random(1).randbytes(_RECORD_BYTES)
        while not self.enough.wait(_PACE_SECONDS):
            for _ in range(_RECORDS):
                try:
                    producer.produce(CHURN, value, on_delivery=self._done)
                except BufferError:
                    break
            producer.poll(0)
        producer.flush(10)

    def _done(self, error: object, message: object) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1


class Soak(Run):
    """`page` is written at the end, whatever became of the run."""

    def __init__(
        self, minutes: float, seed: int, directory: Path, page_file: Path, is_quorum: bool = False
    ) -> None:
        tell = partial(print, flush=True)
        super().__init__(seed, 0, directory, tell=tell, is_quorum=is_quorum)
        self._minutes, self._page = minutes, page_file
        self._acknowledged = self._polled = self.periods = 0
        self._random = Random(f"soak {seed}")

    def run(self) -> Summary:
        """The summary; never raises for what the brokers did."""
        began = time.monotonic()
        until = began + self._minutes * 60
        with (
            Relays() as relays,
            Cluster(
                self.directory, relays, more=_SETTINGS, is_quorum=self.is_quorum
            ) as self.cluster,
            Sampler(list(self.cluster.nodes.values())) as sampler,
        ):
            self.cluster.create_topic(
                CHURN,
                CHURN_PARTITIONS,
                {
                    "retention.bytes": str(RETAINED_BYTES),
                    "segment.bytes": str(SEGMENT_BYTES),
                    "file.delete.delay.ms": "1000",
                },
            )
            with Churn(self.cluster.bootstrap) as churn:
                healthy = True
                while healthy and time.monotonic() < until:
                    self.periods += 1
                    end = min(until, time.monotonic() + PERIOD_MINUTES * 60)
                    healthy = self._is_fine(
                        f"period {self.periods}", partial(self._period, end, until)
                    )
            self._judge_turns()
            self._judge_growth(sampler, churn)
            lines = [
                f"{(time.monotonic() - began) / 60:.1f} minutes, {self.periods} periods, "
                f"{self.summary.rounds} restarts and kills",
                *self.summary.lines(),
                f"{churn.acknowledged:,} records of {_RECORD_BYTES} bytes into the topic under "
                f"retention, {churn.failed:,} refused; it holds {self._churned():,} bytes",
                *self._figures(sampler),
            ]
            self._page.write_text(page("Soak", lines, sampler.series))
            print("\n".join(lines))
            if healthy and self._is_fine("the stop", self.cluster.stop_all):
                self._compare()
        return self.summary

    def _period(self, end: float, until: float) -> None:
        self.cluster.create_topic(TOPIC, PARTITIONS)
        directory = self.directory / f"clients-{self.periods}"
        with ClientProcesses(
            directory, self.cluster.bootstrap, TOPIC, PARTITIONS
        ) as self.client_processes:
            self._begin()
            victims = cycle(RESTARTED)
            while time.monotonic() < end:
                self._act(next(victims))
                time.sleep(min(QUIET_SECONDS, max(0.0, end - time.monotonic())))
                self.client_processes.read()
            self._read_all()
            self._judge(True)
        self._acknowledged += self.summary.acknowledged
        self._polled += self.summary.polled
        self.summary.acknowledged, self.summary.polled = self._acknowledged, self._polled
        self.tell(f"period {self.periods}: {self._acknowledged:,} acknowledged so far")
        if until > end:
            self._forget()

    def _forget(self) -> None:
        """The topic goes; the next period makes it anew."""
        address = self.cluster.brokers[0].address
        self.cluster.until(
            lambda: delete_topic(address, TOPIC) in (_GONE, _UNKNOWN_TOPIC), "the topic goes"
        )
        self.cluster.until(lambda: not self.cluster.standings(TOPIC), "the topic is gone")

    def _act(self, victim: str) -> None:
        """Restarts a broker in order, or kills it; then all is well again."""
        node = self.cluster.nodes[victim]
        how = self._random.choice(("restart", "restart", "kill"))
        began = time.monotonic()
        if how == "kill":
            node.kill()
        else:
            node.ask_to_leave()
            node.await_gone()
        healed = self._heal()
        self.summary.rounds += 1
        self.tell(
            f"{how} of broker {victim}, {time.monotonic() - began:.1f} s: {healed}; "
            f"{self.client_processes.history.acknowledged:,} acknowledged"
        )

    def _judge_turns(self) -> None:
        idle = is_machine_idle()
        for node in self.cluster.nodes.values():
            self.summary.problems += [
                f"node {node.name}: a turn of the reactor of {each}"
                for each in too_slow(slow_turns(node.log), idle)[:5]
            ]

    def _judge_growth(self, sampler: Sampler, churn: Churn) -> None:
        for series in sampler.survivors():
            self.summary.problems += growing(series)
        held, most = self._churned(), 2 * CHURN_PARTITIONS * (RETAINED_BYTES + SEGMENT_BYTES)
        if held > most:
            self.summary.problems.append(f"the topic under retention holds {held:,} bytes")
        if not churn.acknowledged:
            self.summary.problems.append("the topic under retention got nothing")

    def _churned(self) -> int:
        data = Path(self.cluster.brokers[0].data)
        return sum(each.stat().st_size for each in data.glob(f"{CHURN}-*/*.log"))

    def _figures(self, sampler: Sampler) -> list[str]:
        found = []
        for series in sampler.survivors():
            first, last = series.samples[0], series.samples[-1]
            log = next(n.log for n in self.cluster.nodes.values() if n.name == series.node)
            slow = slow_turns(log)
            longest = max(slow, key=lambda each: each.took, default=None)
            turns = [ms for _, ms in series.turn_ms()]
            found.append(
                f"node {series.node}, never restarted: {first.memory:.1f} to {last.memory:.1f} "
                f"MiB, {first.descriptors} to {last.descriptors} descriptors, {first.threads} to "
                f"{last.threads} threads; {last.turns:,.0f} turns, mean "
                f"{sum(turns) / max(1, len(turns)):.2f} ms, {len(slow)} slow ones"
                + (f", the longest {longest}" if longest else "")
            )
        return found


def main(arguments: list[str] | None = None) -> int:
    """0 when the run passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--quorum",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="all three brokers are controllers, too; --no-quorum: one that is no broker",
    )
    parser.add_argument("--page", type=Path, default=Path("build/soak.html"))
    parser.add_argument("--keep", type=Path, metavar="DIR", help="logs and data stay there")
    chosen = parser.parse_args(arguments)
    if chosen.minutes < SHORTEST_MINUTES:
        parser.error(
            f"--minutes: at least {SHORTEST_MINUTES:g}, a shorter run is all warm-up: until "
            "retention deletes segments their descriptors grow"
        )
    directory = (chosen.keep or Path(tempfile.mkdtemp(prefix="soak-"))).absolute()
    chosen.page.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    run = Soak(chosen.minutes, chosen.seed, directory, chosen.page, chosen.quorum)
    run.run()
    print("\n".join(run.summary.problems))
    print(f"page: {chosen.page}")
    if run.summary.problems:
        print(f"logs, histories and data: {directory}")
    elif chosen.keep is None:
        shutil.rmtree(directory)
    print(f"{'failed' if run.summary.problems else 'passed'}")
    return 1 if run.summary.problems else 0


if __name__ == "__main__":
    sys.exit(main())
