"""Settings of topics and brokers, quotas and ACLs, written as any broker does.

Owns `EntityWrites`.

1. A node is written only as it was read: another broker's change in between is looked at again, and
   not overwritten.
2. Each change is announced (`/config/changes`, `/kafka-acl-changes`), after it was written. Both
   are tried again until ZooKeeper answers, for as long as a client waits; to write once more what
   is there already does no harm.
3. Nothing is written once KRaft controllers have taken over: they would not see it.

Source: KRAFT 2.1; Kafka 3.9's `AdminZkClient`, `KafkaZkClient.setOrCreateEntityConfigs` (where the
last writer wins). Not here: what may be written (`api/zookeeper_changes.py`), reading
(`config_watch.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from twisted.internet.task import deferLater

from twisted_broker.cluster.forwarding_manager import LONGEST_WAIT_MS
from twisted_broker.interfaces import Runtime
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.metadata_records import AccessControlEntryRecord as Acl
from twisted_broker.zookeeper.acl_watch import AclWatch
from twisted_broker.zookeeper.acl_znodes import Pattern, acls_json, read_acls
from twisted_broker.zookeeper.port import (
    BadVersionError,
    ConnectionLossError,
    IZooKeeper,
    NodeExistsError,
    NoNodeError,
)
from twisted_broker.zookeeper.znodes import (
    CONFIG_CHANGE_PREFIX,
    CONFIG_CHANGES,
    MIGRATION,
    config_change_json,
    config_json,
    config_path,
    is_being_migrated,
    read_config,
)

_RETRY_SECONDS = 0.5
Values = Mapping[str, str]
T = TypeVar("T")


class EntityWrites:
    """Of settings and quotas `change`, of ACLs `change_acls`."""

    def __init__(self, runtime: Runtime, zookeeper: IZooKeeper, acls: AclWatch) -> None:
        self.acls = acls
        self._runtime, self._zookeeper = runtime, zookeeper

    async def change(
        self, entity_type: str, name: str, decide: Callable[[Values], Values | None]
    ) -> None:
        """`decide(values)` of the node: those to be written; None: nothing is. What it raises ends
        this. Raises BrokerError, ZnodeError.
        """
        path = config_path(entity_type, name)

        def decided(data: bytes) -> bytes | None:
            wanted = decide(read_config(path, data))
            return None if wanted is None else config_json(wanted)

        await self._change(
            path,
            decided,
            f"{CONFIG_CHANGES}/{CONFIG_CHANGE_PREFIX}",
            config_change_json(f"{entity_type}/{name}"),
        )

    async def change_acls(
        self, pattern: Pattern, decide: Callable[[list[Acl]], list[Acl] | None]
    ) -> None:
        """As above, of the ACLs of a resource; this broker obeys them before it answers. A node
        without any stays, empty: another broker may add to it at this moment.
        """

        def decided(data: bytes) -> bytes | None:
            wanted = decide(read_acls(pattern, data))
            return None if wanted is None else acls_json(wanted)

        await self._change(pattern.path, decided, *pattern.change)
        await self.acls.read_again([pattern])

    async def _change(
        self, path: str, decide: Callable[[bytes], bytes | None], announced: str, change: bytes
    ) -> None:
        end_ms = self._runtime.now_ms() + LONGEST_WAIT_MS
        await self._until(end_ms, self._check_controller)
        if await self._until(end_ms, lambda: self._write(path, decide)):
            await self._until(
                end_ms, lambda: self._zookeeper.create(announced, change, sequence=True)
            )

    async def _until(self, end_ms: int, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except ConnectionLossError as error:
                if self._runtime.now_ms() >= end_ms:
                    raise BrokerError(
                        ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper does not answer: {error}"
                    ) from None
            await deferLater(self._runtime.clock, _RETRY_SECONDS, lambda: None)  # type: ignore[arg-type]

    async def _check_controller(self) -> None:
        with suppress(NoNodeError):
            data, _ = await self._zookeeper.get(MIGRATION)
            if is_being_migrated(data):
                raise BrokerError(
                    ErrorCode.NOT_CONTROLLER,
                    "KRaft controllers have taken over this cluster: ask one of its other brokers",
                )

    async def _write(self, path: str, decide: Callable[[bytes], bytes | None]) -> bool:
        """Whether anything was."""
        while True:
            try:
                data, stat = await self._zookeeper.get(path)
                version = stat.version
            except NoNodeError:
                data, version = b"", None
            wanted = decide(data)
            if wanted is None:
                return False
            # Another broker made, wrote or removed it meanwhile: its values are decided on.
            with suppress(BadVersionError, NodeExistsError, NoNodeError):
                if version is None:
                    await self._zookeeper.create(path, wanted)
                else:
                    await self._zookeeper.set(path, wanted, version)
                return True
