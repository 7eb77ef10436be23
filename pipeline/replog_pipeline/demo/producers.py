"""Writes flights with a stock client, as its own process: `python -m
replog_pipeline.demo.producers CLIENT BOOTSTRAP TOPIC COUNT PART PARTS`.

1. CLIENT is kafka-python or confluent-kafka, acks=all; both put a key where Kafka's own clients put
   it.
2. PART of PARTS: every PARTS-th flight from the PART-th on, so that two clients share the work.
3. It ends with status 0 only when every record was acknowledged, and prints how many.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from itertools import islice

from replog_pipeline.demo.flights import Flight, flights

PATIENCE_SECONDS = 120
MODULES = {"kafka-python": "kafka", "confluent-kafka": "confluent_kafka"}


def installed() -> list[str]:
    """The clients that are there."""
    return [name for name, module in MODULES.items() if importlib.util.find_spec(module)]


def with_kafka_python(bootstrap: str, topic: str, records: Iterable[Flight]) -> int:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        compression_type="gzip",
        linger_ms=20,
        batch_size=64 << 10,
    )
    sent = [
        producer.send(topic, each.value, each.key, each.headers, timestamp_ms=each.timestamp)
        for each in records
    ]
    for future in sent:
        future.get(PATIENCE_SECONDS)
    producer.close()
    return len(sent)


def with_confluent_kafka(bootstrap: str, topic: str, records: Iterable[Flight]) -> int:
    from confluent_kafka import Producer

    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "compression.type": "lz4",
            "linger.ms": 20,
            "partitioner": "murmur2_random",
            "log_level": 0,
        }
    )
    count = 0
    for each in records:
        while True:
            try:
                producer.produce(
                    topic,
                    each.value,
                    each.key,
                    on_delivery=lambda error, _: failures.append(str(error)) if error else None,
                    timestamp=each.timestamp,
                    headers=list(each.headers),
                )
                break
            except BufferError:  # its queue is full: let it deliver
                producer.poll(1)
        producer.poll(0)
        count += 1
    if producer.flush(PATIENCE_SECONDS) or failures:
        raise SystemExit(f"confluent-kafka: not delivered: {failures[:1] or 'no answer'}")
    return count


CLIENTS = {"kafka-python": with_kafka_python, "confluent-kafka": with_confluent_kafka}


def main() -> None:
    client, bootstrap, topic, count, part, parts = sys.argv[1:]
    print(
        CLIENTS[client](bootstrap, topic, islice(flights(int(count)), int(part), None, int(parts)))
    )


if __name__ == "__main__":
    main()
