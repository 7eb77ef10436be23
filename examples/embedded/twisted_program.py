"""A broker inside a Twisted program: two nodes of one cluster, their files in one directory.

usage: twisted_program.py DIRECTORY
"""

import sys
from pathlib import Path

from twisted.internet.defer import Deferred
from twisted.internet.task import react

from twisted_broker import Broker, StartError


async def main(directory: str) -> None:
    settings = {"default.replication.factor": 2, "offsets.topic.replication.factor": 2}
    first = Broker(settings, data=Path(directory) / "1")
    try:
        await first.start()
    except StartError as error:
        raise SystemExit(str(error)) from None
    assert first.controller is not None
    joins = {
        "process.roles": "broker",
        "node.id": 2,
        "controller.quorum.bootstrap.servers": first.controller,
    }
    async with Broker(settings | joins, data=Path(directory) / "2") as second:
        print(first.bootstrap, second.bootstrap, first.cluster_id == second.cluster_id)
    await first.stop()


if __name__ == "__main__":
    react(lambda reactor: Deferred.fromCoroutine(main(*sys.argv[1:])))
