"""`python -m tests.soak.quorum --minutes N`: controllers of Apache Kafka 4.3 and of ours in one
quorum, killed and frozen one after the other, while two brokers of ours serve a producer.

1. What was acknowledged is found once and in order. Topics are created and deleted all the while;
   no such change waits longer than `LONGEST_GAP_SECONDS`.
2. No controller ends by itself, and none of ours says that something was unexpected.
3. At the end the logs of all controllers are equal, byte for byte, where they overlap.

QU 8.15. KAFKA_JARS: a folder of Apache Kafka 4.3's jars. `--voters`: who sits at places 1 to 3.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.cluster_processes import Writer
from tests.compat.kafka_processes import JARS
from tests.compat.mixed_quorum import JAVA, OURS, MixedQuorum, Place, log_of
from tests.soak.in_thread import InThread

LONGEST_GAP_SECONDS = 8.0
STRIKES = ("kill the leader", "stop the leader", "freeze the leader", "kill", "freeze", "freeze")
"""The last three strike a controller of ours, leader or not, where there is one."""
DOWN_SECONDS, FROZEN_SECONDS, QUIET_SECONDS = (0.0, 6.0), (0.5, 7.0), (1.0, 8.0)
_PACE_SECONDS = 0.01
_UNEXPECTED = ("Traceback", "Unhandled", "CRITICAL")
_SETTINGS = {
    "metadata_log_max_record_bytes_between_snapshots": "100000",
    "metadata_max_retention_bytes": "400000",
}


class Changes(InThread):
    """Creates a topic and deletes it, again and again. `longest`: between two answers."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__("changes")
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.count, self.longest = 0, 0.0

    def run(self) -> None:
        last = time.monotonic()
        while not self.enough.wait(0.2):
            name = f"changed-{self.count // 2}"
            try:
                if self.count % 2:
                    self._admin.delete_topics([name], request_timeout=20)[name].result(30)
                else:
                    made = NewTopic(name, 1, 1)
                    self._admin.create_topics([made], request_timeout=20)[name].result(30)
            except (KafkaException, TimeoutError) as error:
                if not any(each in str(error) for each in ("ALREADY_EXISTS", "UNKNOWN_TOPIC")):
                    continue  # what was answered by an error is sent again
            now = time.monotonic()
            self.longest, last, self.count = max(self.longest, now - last), now, self.count + 1


class TimedWriter(Writer):
    """A hundred records a second. `longest`: between two that were acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.longest, self._last = 0.0, time.monotonic()
        super().__init__(bootstrap, topic, _PACE_SECONDS)

    def _delivered(self, error: object, value: str) -> None:
        super()._delivered(error, value)
        now = time.monotonic()
        self.longest, self._last = max(self.longest, now - self._last), now


class QuorumSoak:
    """One run in `directory`. `problems`: what was not as it should be."""

    def __init__(self, minutes: float, seed: int, directory: Path, voters: tuple[str, ...]) -> None:
        self._minutes, self._voters = minutes, voters
        self._chance = Random(f"quorum {seed}")
        self._quorum = MixedQuorum(directory, **_SETTINGS)
        self.problems: list[str] = []
        self.strikes, self.led = Counter[str](), Counter[str]()

    def run(self) -> None:
        quorum = self._quorum
        try:
            quorum.start(*self._voters)
            quorum.settle()
            first = quorum.described().leader_epoch
            writer = TimedWriter(quorum.view.bootstrap, "load")
            with Changes(quorum.view.bootstrap) as changes:
                until = time.monotonic() + self._minutes * 60
                try:
                    while time.monotonic() < until and not self.problems:
                        self._strike(writer, changes)
                finally:
                    writer.stop()
            last = quorum.described().leader_epoch
            self._judge(writer)
            if changes.longest > LONGEST_GAP_SECONDS:
                self.problems.append(f"no change of the metadata for {changes.longest:.1f} s")
            print(
                f"{self.strikes.total()} strikes ({listed(self.strikes)}), {last - first} epochs "
                f"begun; who led when one came: {listed(self.led)}"
            )
            print(
                f"{len(writer.acknowledged):,} records acknowledged, {len(writer.failed)} failed, "
                f"longest gap {writer.longest:.2f} s; {changes.count:,} topics created and "
                f"deleted, longest gap {changes.longest:.2f} s"
            )
            self._compare()
        except AssertionError as error:
            self.problems.append(str(error))
        finally:
            quorum.end()

    def _strike(self, writer: Writer, changes: Changes) -> None:
        quorum, how = self._quorum, self._chance.choice(STRIKES)
        leader = quorum.leader
        self.led[leader.kind] += 1
        ours = [each for each in quorum.places.values() if each.kind == OURS]
        place = leader if "leader" in how or not ours else self._chance.choice(ours)
        what = f"{how.split()[0]} {place.kind} {'leader' if place is leader else 'follower'}"
        self.strikes[what] += 1
        began, count = time.monotonic(), changes.count
        if "freeze" in how:
            self._freeze(place)
        else:
            place.stop() if "stop" in how else place.kill()
            time.sleep(self._chance.uniform(*DOWN_SECONDS))
            place.spawn()
        quorum.view.until(lambda: changes.count > count + 2, "topics are created")
        quorum.settle()
        quorum.view.until(writer.progress(), "records go on")
        print(
            f"{time.strftime('%H:%M:%S')} {what} ({place.number}): {time.monotonic() - began:.1f} "
            f"s; longest gap of changes {changes.longest:.2f} s",
            flush=True,
        )
        self._look()
        time.sleep(self._chance.uniform(*QUIET_SECONDS))

    def _freeze(self, place: Place) -> None:
        assert place.member is not None and place.member.process is not None
        place.member.process.send_signal(signal.SIGSTOP)
        time.sleep(self._chance.uniform(*FROZEN_SECONDS))
        self._quorum.begun_ms = time.time_ns() // 1_000_000
        place.member.process.send_signal(signal.SIGCONT)

    def _look(self) -> None:
        """At processes that ended, and at what ours say."""
        for place in self._quorum.places.values():
            member = place.member
            if member is None or member.process is None or member.process.poll() is not None:
                self.problems.append(f"controller {place.number} ended: {place.log_tail()}")
            elif place.kind == OURS and any(each in place.log_tail() for each in _UNEXPECTED):
                self.problems.append(f"controller {place.number}: {place.log_tail()}")

    def _judge(self, writer: Writer) -> None:
        """All of the topic against what was acknowledged."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._quorum.view.bootstrap,
                "group.id": "judge",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        ends = {}
        for number in self._quorum.view.leaders("load"):
            at = TopicPartition("load", number)
            ends[number] = consumer.get_watermark_offsets(at, timeout=30)[1]
        consumer.assign([TopicPartition("load", number, 0) for number in ends])
        found: dict[int, list[int]] = {number: [] for number in ends}
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and any(
            len(found[number]) < end for number, end in ends.items()
        ):
            for message in consumer.consume(5000, 0.2):
                place, value = message.partition(), message.value()
                if message.error() is None and place is not None:
                    found[place].append(int(value or b"-1"))
        consumer.close()
        lost, repeated, reordered = judged(found.values(), map(int, writer.acknowledged))
        line = f"{lost} lost, {repeated} repeated, {reordered} reordered"
        print(line)
        if lost or repeated or reordered or writer.failed:
            self.problems.append(f"{line}, {len(writer.failed)} failed")

    def _compare(self) -> None:
        """The logs of the controllers, where they overlap."""
        self._quorum.settle()
        self._quorum.end()
        logs = {each.number: log_of(each.data) for each in self._quorum.places.values()}
        longest = max(logs.values(), key=len)
        for number, log in logs.items():
            at = longest.find(log[:100])
            if at < 0 or not common_start(longest[at:], log):
                self.problems.append(f"the log of controller {number} differs")


def judged(
    partitions: Collection[Sequence[int]], acknowledged: Iterable[int]
) -> tuple[int, int, int]:
    """How many numbers are lost, there again, and behind a larger one."""
    read = [each for values in partitions for each in values]
    reordered = sum(later < earlier for values in partitions for earlier, later in pairwise(values))
    return len(set(acknowledged) - set(read)), len(read) - len(set(read)), reordered


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


def common_start(one: bytes, other: bytes) -> bool:
    """One may have a batch more than the other, as it was ended later."""
    length = min(len(one), len(other))
    return length > 1000 and one[:length] == other[:length]


def main(arguments: list[str] | None = None) -> int:
    """0 when the run passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.quorum", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--voters", nargs=3, choices=(JAVA, OURS), default=(JAVA, JAVA, OURS), metavar="KIND"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="logs and data stay there")
    chosen = parser.parse_args(arguments)
    if JAVA in chosen.voters and not JARS:
        parser.error("KAFKA_JARS: name the folder of Apache Kafka 4.3's jars")
    directory = (chosen.keep or Path(tempfile.mkdtemp(prefix="quorum-"))).absolute()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    soak = QuorumSoak(chosen.minutes, chosen.seed, directory, tuple(chosen.voters))
    soak.run()
    print("\n".join(soak.problems))
    if soak.problems:
        print(f"logs and data: {directory}")
    elif chosen.keep is None:
        shutil.rmtree(directory)
    print("failed" if soak.problems else "passed")
    return 1 if soak.problems else 0


if __name__ == "__main__":
    sys.exit(main())
