"""Two shops on aiokafka, as programs that die at any moment: `replog simulate simulated.py`.

`simulate` runs the careful one; `simulated.py::naive` the one that loses orders under some seeds.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

ORDERS = [b"%d" % number for number in range(100)]
CLUSTER = {
    "brokers": 3,
    "topics": {"orders": 1, "invoices": 1},
    "settings": {"min.insync.replicas": 2},
}


def _consumer(bootstrap: str, commits_by_itself: bool) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        "orders",
        bootstrap_servers=bootstrap,
        group_id="shop",
        auto_offset_reset="earliest",
        enable_auto_commit=commits_by_itself,
        auto_commit_interval_ms=500,
    )


async def naive_shop(bootstrap: str) -> None:
    """Offsets commit themselves, whether the invoice is written or not."""
    consumer = _consumer(bootstrap, commits_by_itself=True)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all")
    await consumer.start()
    await producer.start()
    async for order in consumer:
        await asyncio.sleep(0.3)  # what a shop does
        await producer.send("invoices", order.value)


async def careful_shop(bootstrap: str) -> None:
    """An order is done when its invoice is written; one that is not sure comes again."""
    consumer = _consumer(bootstrap, commits_by_itself=False)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await consumer.start()
    await producer.start()
    async for order in consumer:
        await asyncio.sleep(0.3)
        await producer.send_and_wait("invoices", order.value)
        with suppress(KafkaError):  # the next one commits this offset, too, or it comes again
            await consumer.commit()


async def naive(kafka) -> None:
    await _orders_have_invoices(kafka, naive_shop)


async def simulate(kafka) -> None:
    await _orders_have_invoices(kafka, careful_shop)


async def _orders_have_invoices(kafka, shop) -> None:
    kafka.start("shop", shop, kafka.bootstrap)
    orders, invoices = await kafka.topic("orders"), await kafka.topic("invoices")
    async with kafka.faults(every="6s"):
        for order in ORDERS:
            await orders.produce([order], within="60s")
            await asyncio.sleep(0.3)
    lacking = set(ORDERS)
    for _ in range(120):  # virtual seconds
        lacking = set(ORDERS) - {each.value for each in await invoices.records()}
        if not lacking:
            return
        await asyncio.sleep(1)
    raise AssertionError(f"orders without an invoice: {sorted(lacking, key=int)}")
