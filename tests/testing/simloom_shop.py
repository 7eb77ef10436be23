"""A shop in simloom: `python simloom_shop.py naive|careful SEED..` prints a line for each seed."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import simloom

from twisted_broker.testing.simloom import kafka  # isort: skip  before the client

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

ORDERS, KILLS = 40, 3


async def shop(bootstrap: str, careful: bool) -> None:
    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=bootstrap,
        group_id="shop",
        auto_offset_reset="earliest",
        # aiokafka's own commits wait for a time too small for simloom's clock to move.
        enable_auto_commit=False,
        session_timeout_ms=6000,
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=careful)
    await consumer.start()
    await producer.start()
    async for order in consumer:
        if not careful:
            await consumer.commit()
        await asyncio.sleep(0.2)
        await producer.send_and_wait("invoices", order.value)
        if careful:
            await consumer.commit()


async def lost(world: Any, careful: bool) -> list[str]:
    """Orders without an invoice. The shop's machine loses power now and then."""
    async with kafka(3, topics={"orders": 1, "invoices": 1}) as cluster:
        orders, invoices = await cluster.topic("orders"), await cluster.topic("invoices")
        machine = world.host("shop")
        machine.spawn(lambda: shop(cluster.bootstrap, careful))
        await orders.produce([b"%d" % number for number in range(ORDERS)])
        for _ in range(KILLS):
            await asyncio.sleep(3 + simloom.draw("shop.lives", 8000) / 1000)
            machine.crash()
            await asyncio.sleep(1)
            machine.restart()
        await asyncio.sleep(60)
        found = {each.value.decode() for each in await invoices.records()}
        return [each for each in map(str, range(ORDERS)) if each not in found]


def main(careful: bool, seeds: list[int]) -> None:
    gc.collect()
    gc.freeze()  # it collects after so many steps
    for seed in seeds:
        result = simloom.run(
            lambda world: lost(world, careful),
            seed=seed,
            virtual_time=True,
            seed_randomness=True,
            gc_interval=1_000_000,
            max_steps_per_instant=20_000,
            on_unhandled="record",
        )
        print(seed, result.digest, "lost", *result.value, flush=True)


if __name__ == "__main__":
    main(sys.argv[1] == "careful", [int(each) for each in sys.argv[2:]])
