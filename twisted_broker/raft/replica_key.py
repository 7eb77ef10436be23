"""Who a replica of the metadata log is: its node id, and the directory that it keeps the log in.

A directory that was lost is another voter: its old vote cannot be cast a second time. A zero
directory id means "not known" (kraft.version 0).

Source: Kafka's `ReplicaKey`; QU 1.21, 9.16.
"""

from __future__ import annotations

from typing import NamedTuple

from twisted_broker.wire.primitives import NULL_UUID


class Address(NamedTuple):
    """Where a node's listener is."""

    host: str
    port: int


class Endpoint(NamedTuple):
    """A listener of a voter, by its name."""

    name: str
    host: str
    port: int

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)


class ReplicaKey(NamedTuple):
    """`id` -1: not said."""

    id: int
    directory_id: bytes = NULL_UUID

    @property
    def has_directory(self) -> bool:
        return self.directory_id != NULL_UUID
