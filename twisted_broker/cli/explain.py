"""The queries of `replog explain`: one GET to each broker, all at once.

Owns the addresses out of run files, and the answers.

1. A broker that does not answer gives an `Answer`, too, with the error.

Source: Kafka has none; the fields are those of `replication/explain/explanation.py`. Not here: the
text (`cli/explain_text.py`).
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

# The state page of a busy broker takes well under a second.
_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one broker answered.

    `state` is None: `error` says why; `knows` False: it answered that there is no such partition or
    group.
    """

    address: str
    node: str
    state: dict[str, Any] | None
    error: str = ""
    knows: bool = True


class NoStatus(Exception):
    """A run file without a broker that can be queried; `str()` is one line."""


def addresses_in(path: Path) -> list[tuple[str, str]]:
    """(node id, HOST:PORT) of every broker in a run file that has a status port.

    Raises NoStatus.
    """
    try:
        brokers = json.loads(path.read_text(encoding="utf-8"))["brokers"]
        found = [
            (str(node), str(entry["status"]))
            for node, entry in brokers.items()
            if entry.get("status")
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoStatus(f"{path} is not the run file of a running broker: {error}") from None
    if not found:
        raise NoStatus(f"the brokers of {path} have no status port (replog.status.port=-1)")
    return found


def query_all(targets: Sequence[tuple[str, str]], name: str, partition: int | None) -> list[Answer]:
    """In the order of `targets`: (node id or "", HOST:PORT). `name` is a topic's, without a
    partition a group's.
    """
    path = f"/explain/{quote(name, safe='')}"
    if partition is not None:
        path += f"/{partition}"
    with ThreadPoolExecutor(max_workers=min(32, len(targets))) as pool:
        return list(pool.map(lambda target: query(target[0], target[1], path), targets))


def query(node: str, address: str, path: str) -> Answer:
    """Never raises."""
    host, _, port = address.rpartition(":")
    try:
        connection = HTTPConnection(host or "127.0.0.1", int(port), timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        # It answers, so it lives; it only has no such partition.
        if response.status == 404:
            return Answer(address, node, None, body.decode(errors="replace").strip(), knows=False)
        if response.status != 200:
            return Answer(address, node, None, f"it answers with status {response.status}")
        state = json.loads(body)
        return Answer(address, str(state["broker"]), state)
    except TimeoutError:
        # Before OSError, whose subclass it is.
        return Answer(address, node, None, f"it does not answer within {_TIMEOUT_SECONDS:.0f} s")
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        return Answer(address, node, None, f"it cannot be reached: {error}")


def is_known(answers: Iterable[Answer]) -> bool:
    """Whether any broker knows the partition, or the group."""
    return any(answer.state is not None for answer in answers)
