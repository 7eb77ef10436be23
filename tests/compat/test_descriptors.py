"""A broker that may open few files: refused in a line, or serving."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from tests.compat.broker_process import BrokerProcess

LEAST = 160


class Bounded(BrokerProcess):
    """May open `files`."""

    files = LEAST

    def command(self) -> list[str]:
        return ["bash", "-c", f'ulimit -n {self.files}; exec "$0" "$@"', *super().command()]


@pytest.mark.parametrize("files", [64, LEAST - 1])
def test_below_what_it_needs_it_ends_with_a_line(tmp_path: Path, files: int) -> None:
    broker = Bounded(tmp_path)
    broker.files = files
    broker.spawn(wait=False)
    assert broker.process is not None and broker.process.wait(60) == 1
    said = broker.log.read_text().splitlines()
    assert len(said) == 1 and f"open {files} files" in said[0] and "ulimit -n" in said[0]


def test_with_the_least_it_serves_producers_and_groups(tmp_path: Path) -> None:
    broker = Bounded(tmp_path).start()
    try:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
        for number in range(30):
            producer.send(f"t{number % 3}", b"%d" % number).get(30)
        producer.close()
        for group in ("g", "h"):
            consumer = KafkaConsumer(
                "t0", "t1", "t2",
                bootstrap_servers=broker.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
            )  # fmt: skip
            found = [record.value for _, record in zip(range(30), consumer, strict=False)]
            consumer.commit()
            consumer.close()
            assert sorted(found, key=int) == [b"%d" % number for number in range(30)]
        assert "Too many open files" not in broker.log.read_text()
    finally:
        broker.stop()
