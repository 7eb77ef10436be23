"""Clients that were last released before Kafka dropped their protocol: kafka-python 1.4.7 and
afkak, in an environment of their own (long tests).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat import clients, raw

LIMIT_SECONDS = 120
VERSIONS = ("0.8.2", "0.9", "0.10", "0.11", "1.0")

KAFKA_PYTHON = """
import json, sys
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
bootstrap, topic, version, count = sys.argv[1], sys.argv[2], tuple(map(int, sys.argv[3].split("."))), int(sys.argv[4])
out = {}
for codec in (None, "gzip", "lz4"):
    if codec == "lz4" and version < (0, 8, 2):
        continue
    producer = KafkaProducer(bootstrap_servers=bootstrap, api_version=version, compression_type=codec, acks="all", retries=3)
    sent = [producer.send(topic, key=b"k", value=b"%s %d" % (str(codec).encode(), n), partition=0) for n in range(count)]
    out[str(codec)] = [one.get(30).offset for one in sent]
    producer.close()
group = None if version < (0, 9) else "old-" + sys.argv[3]
consumer = KafkaConsumer(bootstrap_servers=bootstrap, api_version=version, group_id=group, enable_auto_commit=False, consumer_timeout_ms=20000)
partition = TopicPartition(topic, 0)
consumer.assign([partition])
consumer.seek_to_beginning(partition)
read = []
for record in consumer:
    read.append([record.offset, record.value.decode()])
    if len(read) == 3 * count:
        break
if group:
    consumer.commit()
    out["committed"] = consumer.committed(partition)
consumer.close()
out["read"] = read
print(json.dumps(out))
"""

AFKAK = """
import json, sys
from twisted.internet import defer, task
from afkak import Consumer, KafkaClient, Producer
from afkak.consumer import OFFSET_EARLIEST
from afkak.kafkacodec import CODEC_GZIP, CODEC_NONE
bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

async def main(reactor):
    client = KafkaClient(bootstrap, timeout=20000)
    for codec in (CODEC_NONE, CODEC_GZIP):
        producer = Producer(client, req_acks=-1, codec=codec)
        await producer.send_messages(topic, key=b"k", msgs=[b"value %d" % n for n in range(count)])
        producer.stop()
    done, read = defer.Deferred(), []
    def process(consumer, messages):
        read.extend([m.offset, m.message.value.decode()] for m in messages)
        if len(read) >= 2 * count and not done.called:
            done.callback(None)
    consumer = Consumer(client, topic, 0, process)
    ended = consumer.start(OFFSET_EARLIEST)
    await done.addTimeout(30, reactor)
    consumer.stop()
    await ended
    await client.close()
    print(json.dumps(read))

task.react(lambda reactor: defer.ensureDeferred(main(reactor)))
"""


@pytest.fixture(scope="module")
def old_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with the old clients, or a skip when they cannot be installed here."""
    where = tmp_path_factory.mktemp("old") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
    packages = ["kafka-python==1.4.7", "afkak==21.5.0.post0", "lz4", "xxhash", "setuptools<81"]
    done = subprocess.run(
        [str(where / "bin" / "pip"), "install", "-q", *packages], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"the old clients cannot be installed: {done.stderr[-300:]}")
    return where / "bin" / "python"


def run(python: Path, script: str, *arguments: object) -> object:
    done = subprocess.run(
        [str(python), "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", VERSIONS)
def test_kafka_python_1(broker: object, topic: str, old_python: Path, version: str) -> None:
    """As a client of each age: produce with its codecs, read back, commit; a client of today
    reads the same.
    """
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, topic) == 0
    found = run(old_python, KAFKA_PYTHON, broker.bootstrap, topic, version, 50)  # type: ignore[attr-defined]
    assert isinstance(found, dict)
    wanted = [f"{codec} {number}" for codec in ("None", "gzip", "lz4") for number in range(50)]
    assert found["None"] + found["gzip"] + found["lz4"] == list(range(150))
    assert found["read"] == [[offset, value] for offset, value in enumerate(wanted)]
    assert found.get("committed", 150) == 150
    rows = clients.Confluent().consume(broker.bootstrap, topic, f"new-{topic}", 150)  # type: ignore[attr-defined]
    assert [value for _, value, _ in rows] == [value.encode() for value in wanted]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_afkak(broker: object, topic: str, old_python: Path) -> None:
    """afkak speaks Produce v0 or v1 and Fetch v0 to v2."""
    with raw.Connection(broker.address) as connection:  # type: ignore[attr-defined]
        assert raw.create_topic(connection, topic) == 0
    found = run(old_python, AFKAK, broker.bootstrap, topic, 30)  # type: ignore[attr-defined]
    assert found == [[offset, f"value {offset % 30}"] for offset in range(60)]
