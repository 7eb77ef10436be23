"""A broker inside an asyncio program. The broker makes Twisted's reactor of the running loop; what
the program connects to has its address as a number (127.0.0.1), because nothing resolves names.
"""

import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from twisted_broker import Broker


async def main() -> None:
    async with Broker({"num.partitions": 3}) as broker:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            await producer.send_and_wait("greetings", b"hello")
        async with AIOKafkaConsumer(
            "greetings",
            bootstrap_servers=broker.bootstrap,
            group_id="readers",
            auto_offset_reset="earliest",
        ) as consumer:
            record = await consumer.getone()
            print(record.value.decode())


if __name__ == "__main__":
    asyncio.run(main())
