"""Our broker over log files that Apache Kafka 4.3.1 wrote, with what Kafka's own clients read of
them.

`tests/log/golden/kafka-4.3.1.tar.gz` (see `tests/log/test_golden.py`) has them: topic `rich` in all
codecs, with headers, idempotent and transactional producers, aborted and overlapping transactions,
a log start at 3; in state `killed` also a transaction that is open.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

from kafka.admin import KafkaAdminClient, NewTopic

from tests.compat.broker_process import BrokerProcess

ARCHIVE = Path(__file__).parents[1] / "log" / "golden" / "kafka-4.3.1.tar.gz"
TOPICS = ("rich", "stamped")


def unpack(directory: Path, state: str = "killed") -> Path:
    """Kafka's log directory of one state ("clean", "killed"), below `directory`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(directory, filter="data")
    return directory / state


def expected(log_directory: Path, topic: str, isolation: str) -> list[list[Any]]:
    """[offset, timestamp, key, value, [[header, value]]] of every record, as a consumer with
    that isolation level read them.
    """
    found: list[list[Any]] = json.loads((log_directory / "expected.json").read_text())[
        f"{topic}/{isolation}"
    ]["records"]
    return found


def serve(directory: Path, log_directory: Path) -> BrokerProcess:
    """A broker that has the topics, and Kafka's files as their logs; ready."""
    broker = BrokerProcess(directory, {"log.retention.ms": "-1"}).start()
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        admin.create_topics(
            [NewTopic(name=topic, num_partitions=1, replication_factor=1) for topic in TOPICS]
        )
    finally:
        admin.close()
    broker.stop()
    # Kafka's records go up to leader epoch 2: a node whose metadata knows older epochs only stops.
    broker.start().stop()
    for topic in TOPICS:
        replace_log(Path(broker.data) / f"{topic}-0", log_directory / f"{topic}-0")
    shutil.copy(log_directory / "log-start-offset-checkpoint", broker.data)
    for stale in (
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        ".kafka_cleanshutdown",
    ):
        (Path(broker.data) / stale).unlink(missing_ok=True)
    return broker.start()


def replace_log(own: Path, kafkas: Path) -> None:
    """The partition keeps its topic id and gets other segments."""
    for path in own.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in kafkas.iterdir():
        if path.name != "partition.metadata":
            shutil.copy(path, own)
