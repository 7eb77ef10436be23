"""Two shops that write an invoice for each order: as it is often written, and without a loss.

`twisted-broker` is not imported here: a shop gets the address of a cluster, of whatever kind.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

Shop = Callable[[str, int], None]
"""(bootstrap servers, how many orders to serve before it closes)"""


def _consumer(bootstrap: str, commits_by_itself: bool) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "shop",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": commits_by_itself,
            "log_level": 0,
        }
    )
    consumer.subscribe(["orders"])
    return consumer


def _next_order(consumer: Consumer) -> Message:
    while True:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            return message


def _invoice(order: Message) -> bytes:
    return b"invoice of " + (order.value() or b"")


def naive(bootstrap: str, orders: int) -> None:
    """Nobody looks whether an invoice was taken; the offsets commit themselves."""
    consumer = _consumer(bootstrap, commits_by_itself=True)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "log_level": 0})
    for _ in range(orders):
        producer.produce("invoices", _invoice(_next_order(consumer)))
    producer.flush()
    consumer.close()


def careful(bootstrap: str, orders: int) -> None:
    """An invoice and the offset of its order are one transaction: both are there, once, or none."""
    consumer = _consumer(bootstrap, commits_by_itself=False)
    producer = _transactional(bootstrap)
    served = 0
    while served < orders:
        order = _next_order(consumer)
        try:
            producer.begin_transaction()
            producer.produce("invoices", _invoice(order))
            done, group = [_position(order, further=1)], consumer.consumer_group_metadata()
            _surely(producer.send_offsets_to_transaction, done, group, 10)
            _surely(producer.commit_transaction, 10)
            served += 1
        except KafkaException as error:
            producer = _aborted(bootstrap, producer, error)
            consumer.seek(_position(order))  # the same order once more
    consumer.close()


def _surely(call: Callable[..., None], *arguments: object) -> None:
    """What may be tried again is not over: it goes on with the next try."""
    while True:
        try:
            return call(*arguments)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def _transactional(bootstrap: str) -> Producer:
    config = {"bootstrap.servers": bootstrap, "transactional.id": "shop", "log_level": 0}
    # So long it waits for a coordinator of the group that is dead, whatever the time-out of its
    # call (librdkafka issue 5456): 15 minutes unless this says otherwise.
    producer = Producer({**config, "metadata.max.age.ms": 3000})
    _surely(producer.init_transactions, 10)
    return producer


def _aborted(bootstrap: str, producer: Producer, error: KafkaException) -> Producer:
    """The producer to go on with: another one where this cannot."""
    if error.args[0].txn_requires_abort():
        _surely(producer.abort_transaction, 10)
        return producer
    return _transactional(bootstrap)


def _position(order: Message, further: int = 0) -> TopicPartition:
    topic, partition, offset = order.topic(), order.partition(), order.offset()
    assert topic is not None and partition is not None and offset is not None
    return TopicPartition(topic, partition, offset + further)
