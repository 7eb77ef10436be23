"""`python -m tests.soak.archive --minutes N`: six topics of three brokers of ours, over SASL_SSL,
archived by a pattern into Delta tables on an S3 server that checks signatures, under load. The
archive is killed every few minutes, and a broker now and then.

1. At the end every table is compared with its topic, row by row, with all that a record has; the
   topic holds what its producer was acknowledged, once; the group's offsets are the topics' ends.
2. The archive ends by no other cause than a kill, and by SIGTERM with status 0. No password is in
   what it says.
3. What it took is one table of figures.

The S3 server is moto's (`tests/pipeline/stores/s3_server.py`); the jars come by
`replog pipeline jars --store s3`, once.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.clients.job import MECHANISM, PASSWORD, USER
from tests.faults.cluster import BROKERS, Cluster
from tests.faults.relay import Relays
from tests.faults.security import SASL_SSL
from tests.pipeline.stores.s3_server import BUCKET, S3Server, serving
from tests.soak.archive_process import KILLS, PATIENCE_SECONDS, ArchiveProcess, command
from tests.soak.topics import PARTITIONS, Compared, Load, client, committed, compare

TOPICS = tuple(f"load-{letter}" for letter in "abcdef")
GROUP = "lake"
INTERVAL_SECONDS = 10
KILL_SECONDS, BROKER_KILLED, BROKER_DOWN = 240.0, (120.0, 400.0), (1.0, 20.0)
"""Between two kills of the archive, in the middle; of brokers at least and at most, and until one
starts again.
"""
HEAP_MB = 1024
_LOOK_SECONDS = 0.5
_FULL_HEAP_PART = 0.8
_CONF = (
    "spark.hadoop.fs.s3a.path.style.access=true",
    "spark.master=local[2]",
    "spark.sql.shuffle.partitions=2",
    "spark.databricks.delta.snapshotPartitions=2",
)


class ArchiveSoak:
    """One run in `directory`. `problems`: what was not as it should be."""

    def __init__(
        self, minutes: float, rate: int, seed: int, directory: Path, kill_seconds: float
    ) -> None:
        self._archive_killed = (kill_seconds / 2, kill_seconds * 3 / 2)
        self._minutes, self._rate, self._directory = minutes, rate, directory
        self._chance = Random(f"archive {seed}")
        self.problems: list[str] = []
        self.kills = dict.fromkeys(KILLS, 0)
        self.broker_kills = 0
        self.compared: dict[str, Compared] = {}

    def run(self) -> None:
        with (
            serving() as self._server,
            Relays() as relays,
            Cluster(self._directory, relays, security=SASL_SSL) as self._cluster,
        ):
            for topic in TOPICS:
                self._cluster.create_topic(topic, PARTITIONS)
            self._client = client(self._cluster.bootstrap, self._cluster.authority)
            archive = ArchiveProcess(
                self._directory / "archive", self._arguments(), self._environment(self._server)
            )
            try:
                with Load(self._client, TOPICS, self._rate) as load:
                    archive.start()
                    self._under_kills(archive)
                    self._cluster.start_all()
                self._cluster.until(lambda: not self._cluster.sick(), self._cluster.sick)
                self.problems += load.failures[:5] + archive.stop()
                self._bring_the_rest()
                self._compare(load)
            finally:
                archive.end()
            said = "".join(each.read_text() for each in archive.directory.glob("log-*"))
            if any(secret in said for secret in (PASSWORD, self._server.writer.secret)):
                self.problems.append("a password is in what the archive says")
            self._print_figures(archive, load)

    def _arguments(self) -> list[str]:
        """Of the archive."""
        properties = self._directory / "client.properties"
        properties.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism={MECHANISM}\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{USER}" password="{PASSWORD}";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={self._cluster.authority}\n"
        )
        conf = (*_CONF, f"spark.local.dir={self._directory / 'spark'}")
        return [
            *("archive", "--from", f"kafka://{self._cluster.bootstrap}/load-.*"),
            *("--to", f"s3a://{BUCKET}/tables", "--kafka-config", str(properties)),
            *("--group", GROUP, "--interval", str(INTERVAL_SECONDS)),
            *(f"--spark-conf={setting}" for setting in conf),
        ]

    def _environment(self, server: S3Server) -> dict[str, str]:
        own = {"AWS_ENDPOINT_URL": server.url}
        return os.environ | own | server.writer.environment()

    def _under_kills(self, archive: ArchiveProcess) -> None:
        now = time.monotonic()
        until = now + self._minutes * 60
        next_kill = now + self._between(self._archive_killed)
        next_broker, back, down = now + self._between(BROKER_KILLED), 0.0, ""
        while (now := time.monotonic()) < until:
            ended = archive.look()
            if ended:
                self._problem(f"the archive, which nobody killed: {ended}")
                archive.start()
            if now >= next_kill:
                kind = self._chance.choice(KILLS)
                self.problems += archive.kill(kind)
                self.kills[kind] += 1
                self._print(f"killed the archive ({kind}) after {len(archive.batches)} batches")
                archive.start()
                next_kill = time.monotonic() + self._between(self._archive_killed)
            if not down and now >= next_broker and not self._cluster.sick():
                down, back = self._chance.choice(BROKERS), now + self._between(BROKER_DOWN)
                self._cluster.nodes[down].kill()
                self.broker_kills += 1
                self._print(f"killed broker {down}")
            elif down and now >= back:
                self._cluster.nodes[down].start()
                down, next_broker = "", time.monotonic() + self._between(BROKER_KILLED)
            time.sleep(_LOOK_SECONDS)

    def _between(self, ends: tuple[float, float]) -> float:
        """Shorter in a short run, so that it has its kills too."""
        return self._chance.uniform(*ends) * min(1.0, max(0.4, self._minutes / 10))

    def _bring_the_rest(self) -> None:
        """What came since the last look, without `--continuous`."""
        done = subprocess.run(
            command(*self._arguments(), "--json", "--quiet"),
            capture_output=True,
            text=True,
            env=self._environment(self._server),
            timeout=4 * PATIENCE_SECONDS,
        )
        if done.returncode:
            self._problem(f"the last archive: status {done.returncode}, {done.stderr}")
        else:
            found = json.loads(done.stdout)
            self._print(f"the last archive brought {found['rows']:,} records")

    def _compare(self, load: Load) -> None:
        reached = committed(self._client, GROUP, TOPICS)
        for topic in TOPICS:
            found = compare(self._client, topic, load.sent[topic], self._server, f"tables/{topic}")
            self.compared[topic] = found
            for line in found.problems:
                self._problem(line)
            if reached[topic] != found.ends:
                self._problem(f"group {GROUP}: {topic} at {reached[topic]}, not {found.ends}")

    def _print_figures(self, archive: ArchiveProcess, load: Load) -> None:
        seconds = sorted(each.seconds for each in archive.batches) or [0.0]
        resident = [each.megabytes for each in archive.batches if each.megabytes] or [0]
        third = max(1, len(resident) // 3)
        heap = archive.heap_after_collections() or [0]
        starts = archive.to_first or [0.0]
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kills.items())
        last = max((each.life for each in archive.batches), default=0)
        longest = statistics.mode([each.life for each in archive.batches]) if last else 0
        alone = [each.megabytes for each in archive.batches if each.life == longest]
        if max(heap) > HEAP_MB * _FULL_HEAP_PART:
            self._problem(f"a collection left {max(heap)} MB of the heap of {HEAP_MB}")
        lines = {
            "minutes": f"{self._minutes:g}",
            "records acknowledged": f"{load.acknowledged:,}",
            "rows compared, equal unless said otherwise": f"{self._rows():,} in "
            f"{len(self.compared)} tables, {sum(each.files for each in self.compared.values()):,} "
            "files",
            "kills of the archive": f"{sum(self.kills.values())} ({kinds})",
            "kills of a broker": f"{self.broker_kills}",
            "batches": f"{len(archive.batches):,} in {archive.lives} processes",
            "seconds of a batch: median, 95 %, longest": f"{statistics.median(seconds):.1f}, "
            f"{seconds[int(len(seconds) * 0.95)]:.1f}, {seconds[-1]:.1f}",
            "seconds from a start to the first batch: median, longest": (
                f"{statistics.median(starts):.0f}, {max(starts):.0f}"
            ),
            "most offsets behind, by the heartbeats": f"{max(archive.behind, default=0):,}",
            "MB of the JVM at the end of a batch: first third, last third, most": (
                f"{statistics.median(resident[:third]):.0f}, "
                f"{statistics.median(resident[-third:]):.0f}, {max(resident)}"
            ),
            "the same in the process of the most batches: first, last": (
                f"{alone[0]}, {alone[-1]} ({len(alone)} batches)" if alone else "none"
            ),
            "MB of the heap after a collection: median, most": f"{statistics.median(heap):.0f}, "
            f"{max(heap)} of {HEAP_MB}",
        }
        print("\n".join(["| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in lines.items())]))

    def _rows(self) -> int:
        return sum(each.rows for each in self.compared.values())

    def _problem(self, line: str) -> None:
        self.problems.append(line)
        self._print(line)

    def _print(self, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the run passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.archive", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=600, help="records a second, of all topics")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kill-every", type=float, default=KILL_SECONDS, metavar="SECONDS", help="the archive"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="logs and data stay there")
    chosen = parser.parse_args(arguments)
    directory = (chosen.keep or Path(tempfile.mkdtemp(prefix="soak-"))).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # moto's server tells every request
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    run: Any = ArchiveSoak(chosen.minutes, chosen.rate, chosen.seed, directory, chosen.kill_every)
    run.run()
    print("\n".join(run.problems))
    if run.problems:
        print(f"logs and data: {directory}")
    elif chosen.keep is None:
        shutil.rmtree(directory)
    print("failed" if run.problems else "passed")
    return 1 if run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
