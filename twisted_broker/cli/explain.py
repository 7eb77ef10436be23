"""`replog explain`: asks brokers about one partition, and gathers what they say.

Owns the asking: addresses out of run files, one GET per broker, all at once.

1. A broker that does not answer is part of the story: its line says why.

Source: issue "Replication", explain; `status.pages`. Not here: the words (`story`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import quote

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one broker said.

    `told` None: `error` says why; `knows` False: it answered that there is no such partition.
    """

    address: str
    node: str
    told: dict[str, Any] | None
    error: str = ""
    knows: bool = True


class NoStatus(Exception):
    """A run file from which no broker can be asked; `str()` is one line."""


def addresses_in(path: Path) -> list[tuple[str, str]]:
    """(node id, HOST:PORT) of every broker in a run file that tells of itself. Raises NoStatus."""
    try:
        brokers = json.loads(path.read_text(encoding="utf-8"))["brokers"]
        found = [
            (str(node), str(entry["status"]))
            for node, entry in brokers.items()
            if entry.get("status")
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoStatus(f"{path} is no run file of running brokers: {error}") from None
    if not found:
        raise NoStatus(f"the brokers of {path} have no status port (replog.status.port=-1)")
    return found


def ask_all(targets: Sequence[tuple[str, str]], topic: str, partition: int) -> list[Answer]:
    """In the order of `targets`: (node id or "", HOST:PORT)."""
    with ThreadPoolExecutor(max_workers=min(32, len(targets))) as pool:
        return list(pool.map(lambda target: ask(target[0], target[1], topic, partition), targets))


def ask(node: str, address: str, topic: str, partition: int) -> Answer:
    """Never raises."""
    host, _, port = address.rpartition(":")
    try:
        connection = HTTPConnection(host or "127.0.0.1", int(port), timeout=_PATIENCE_SECONDS)
        try:
            connection.request(
                "GET",
                f"/explain/{quote(topic, safe='')}/{partition}",
                headers={"Connection": "close"},
            )
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status == 404:
            return Answer(address, node, None, body.decode(errors="replace").strip(), knows=False)
        if response.status != 200:
            return Answer(address, node, None, f"it answers with status {response.status}")
        told = json.loads(body)
        return Answer(address, str(told["broker"]), told)
    except TimeoutError:
        return Answer(address, node, None, f"it does not answer within {_PATIENCE_SECONDS:.0f} s")
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        return Answer(address, node, None, f"it cannot be asked: {error}")


def is_known(answers: Iterable[Answer]) -> bool:
    """Whether anybody told of the partition."""
    return any(answer.told is not None for answer in answers)
