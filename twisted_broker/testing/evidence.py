"""A test's questions to its cluster's trace.

Owns `Evidence`: exchanges as JSON has them, files of them, and what clients were told compared with
what is there. Each public method is one call of the socket.

Source: our own. Not here: the frames (`trace.py`), the comparisons (`told.py`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from twisted_broker.testing import told
from twisted_broker.testing.cluster_calls import ClusterCalls
from twisted_broker.testing.request_names import names_of
from twisted_broker.testing.trace import Exchange, Trace
from twisted_broker.testing.trace_files import write_pcap
from twisted_broker.wire.structs import Struct


class Evidence:
    """Of a cluster that runs."""

    def __init__(self, calls: ClusterCalls, trace: Trace) -> None:
        self._calls, self._trace = calls, trace

    async def exchanges(
        self,
        api: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        client_id: str | None = None,
    ) -> list[dict[str, Any]]:
        """Requests with their answers, those of which all that is given holds."""
        return [
            _described(each)
            for each in self._trace.exchanges()
            if api in (None, each.api)
            and client_id in (None, each.client_id)
            and self._is_about(each, topic, group)
        ]

    def _is_about(self, exchange: Exchange, topic: str | None, group: str | None) -> bool:
        if topic is None and group is None:
            return True
        names = names_of(exchange.request, self._calls.topic_named)
        topics = {each for each, _ in names.partitions}
        return (topic is None or topic in topics) and (group is None or group in names.groups)

    async def save_trace(self, path: str) -> None:
        """`path`.jsonl: an exchange a line; `path`.pcap: for Wireshark."""
        with open(f"{path}.jsonl", "w") as lines:
            for each in self._trace.exchanges():
                print(json.dumps(_described(each)), file=lines)
        with open(f"{path}.pcap", "wb") as packets:
            write_pcap(packets, self._trace)

    async def anomalies(self, kind: str, topic: str) -> list[str]:
        """`lost`, `repeated` or `reordered`; a sentence each."""
        kept = [
            told.Kept(each["partition"], each["offset"], _bytes(each["key"]), _bytes(each["value"]))
            for each in await self._calls.records(topic)
        ]
        sent = list(told.sent(self._trace.exchanges(), topic, self._calls.id_of(topic)))
        if kind == "lost":
            return told.lost(sent, kept, await self._calls.starts(topic))
        return (told.repeated if kind == "repeated" else told.reordered)(sent, kept)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _described(exchange: Exchange) -> dict[str, Any]:
    return {
        "at": exchange.at,
        "seconds": None if exchange.ended is None else exchange.ended - exchange.at,
        "machine": exchange.peer.machine,
        "client_id": exchange.client_id,
        "port": exchange.peer.client[1],
        "api": exchange.api,
        "version": exchange.version,
        "request": _plain(exchange.request, exchange.version),
        "answer": _plain(exchange.answer, exchange.version),
    }


def _plain(value: Any, version: int) -> Any:
    """As JSON has it: bytes as their base64 text, records as their size."""
    if isinstance(value, Struct):
        return {name: _plain(each, version) for name, each in _fields(value, version)}
    if isinstance(value, list | tuple):
        return [_plain(each, version) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value


def _fields(struct: Struct, version: int) -> Iterator[tuple[str, Any]]:
    for field in struct.FIELDS:
        if field.is_in(version):
            value = getattr(struct, field.name)
            if field.kind == "record_bytes" and value is not None:
                value = f"{len(value)} bytes"
            yield field.name, value
