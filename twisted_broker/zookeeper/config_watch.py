"""Settings of topics and brokers, quotas of users, clients and addresses, and SCRAM credentials of
users, from `/config`.

Owns `ConfigWatch`: reads them at the start, of new topics, and at each notification.

1. A notification is a child of `/config/changes`, read once, in order; those of before the start
   are not needed.
2. A new session reads everything again: what was announced in between may be gone.
3. A node that cannot be understood is one line, and leaves the settings as they were.

Source: KRAFT 2.1; Kafka 3.9's `ZkConfigManager`, `ZkNodeChangeNotificationListener`. Not here:
what settings do (`config.py`) and quotas (`security/quota`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import unquote

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, ensureDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.image.metadata_image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ConfigKey,
    QuotaEntity,
)
from twisted_broker.interfaces import Runtime
from twisted_broker.java_numbers import is_digits
from twisted_broker.wire.messages.metadata_records import UserScramCredentialRecord
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.port import IZooKeeper, NoNodeError, ZooKeeperError
from twisted_broker.zookeeper.znodes import (
    CONFIG_CHANGE_PREFIX,
    CONFIG_CHANGES,
    DEFAULT_ENTITY,
    ZnodeError,
    config_path,
    quota_entity,
    read_config,
    read_config_change,
    read_quotas,
    read_scram,
)

_logger = Logger()
_RETRY_MS = 500
_KINDS = {"topics": TOPIC_RESOURCE, "brokers": BROKER_RESOURCE}
_NOTHING: Mapping[str, str] = {}
_NO_QUOTAS: Mapping[str, float] = {}
_NO_CREDENTIALS: Mapping[int, UserScramCredentialRecord] = {}


class _Found(NamedTuple):
    """What nodes say, by entity; empty: nothing any more."""

    configs: dict[ConfigKey, Mapping[str, str]]
    quotas: dict[QuotaEntity, Mapping[str, float]]
    scram: dict[str, Mapping[int, UserScramCredentialRecord]]


class ConfigWatch:
    """What it reads goes to `state`."""

    def __init__(self, runtime: Runtime, zookeeper: IZooKeeper, state: ClusterState) -> None:
        self._runtime, self._zookeeper, self._state = runtime, zookeeper, state
        self._lock: DeferredLock = DeferredLock()
        self._seen = -1
        self._stopped = False
        self._watching: set[Deferred[None]] = set()

    def stop(self) -> None:
        """Nothing is read any more."""
        self._stopped = True
        for each in list(self._watching):
            each.cancel()

    async def load(self) -> None:
        """All settings, and the watch for changes; tried again until it works."""
        await self._lock.acquire()
        try:
            while not self._stopped:
                try:
                    await self._load()
                    return
                except ZooKeeperError as error:
                    _logger.debug("settings are read again: {error}", error=error)
                    await self._pause()
        finally:
            self._lock.release()

    async def load_topics(self, names: Collection[str]) -> None:
        """Of topics that were just made; waits until ZooKeeper answers."""
        if not names:
            return
        # A change that is taken meanwhile would be overwritten by what was read before it.
        await self._lock.acquire()
        try:
            while not self._stopped:
                try:
                    found = _Found({}, {}, {})
                    for name in names:
                        await self._entity(found, "topics", name)
                    self._state.set_configs(found.configs, found.quotas, found.scram)
                    return
                except ZooKeeperError as error:
                    _logger.debug("settings of topics are read again: {error}", error=error)
                    await self._pause()
        finally:
            self._lock.release()

    async def _load(self) -> None:
        # The watch first: what changes while settings are read is read again.
        names = await self._children(watched=True)
        found = _Found({}, {}, {})
        for entity_type in (*_KINDS, "users", "clients", "ips"):
            for name in await self._names(f"/config/{entity_type}"):
                await self._entity(found, entity_type, name)
                if entity_type == "users":
                    for client in await self._names(f"/config/users/{name}/clients"):
                        await self._entity(found, entity_type, f"{name}/clients/{client}")
        image = self._state.image
        self._seen = max((_number(name) for name in names), default=-1)
        self._state.set_configs(
            dict.fromkeys(image.configs, _NOTHING) | found.configs,
            dict.fromkeys(image.client_quotas, _NO_QUOTAS) | found.quotas,
            dict.fromkeys((name for _, name in image.scram), _NO_CREDENTIALS) | found.scram,
        )

    async def _names(self, path: str) -> list[str]:
        try:
            return await self._zookeeper.children(path)
        except NoNodeError:
            return []

    async def _children(self, watched: bool) -> list[str]:
        try:
            return await self._zookeeper.children(
                CONFIG_CHANGES, self._changed if watched else None
            )
        except NoNodeError:
            with suppress(ZooKeeperError):
                await self._zookeeper.create(CONFIG_CHANGES, b"")
            return await self._zookeeper.children(
                CONFIG_CHANGES, self._changed if watched else None
            )

    async def _entity(self, found: _Found, entity_type: str, name: str) -> None:
        """Adds what one has; of a kind that is not known, or not understood, nothing."""
        limited = quota_entity(entity_type, name)
        if limited is None and entity_type not in _KINDS:
            return
        path = config_path(entity_type, name)
        try:
            data, _ = await self._zookeeper.get(path)
        except NoNodeError:
            data = b""
        image = self._state.image
        if limited is not None:
            found.quotas[limited] = image.client_quotas.get(limited, _NO_QUOTAS)
        else:
            key = (_KINDS[entity_type], "" if name == DEFAULT_ENTITY else name)
            found.configs[key] = image.config(*key)
        try:
            if limited is not None:
                found.quotas[limited] = read_quotas(path, data)
                if entity_type == "users" and "/" not in name:
                    found.scram[unquote(name)] = read_scram(path, name, data)
            else:
                found.configs[key] = read_config(path, data)
        except ZnodeError as error:
            _logger.error("{error}: its settings stay as they were", error=error)

    def _changed(self) -> None:
        if self._stopped:
            return
        work = ensureDeferred(self._take())
        self._watching.add(work)

        work.addErrback(_log_failure).addBoth(lambda result: self._watching.discard(work))

    async def _take(self) -> None:
        await self._lock.acquire()
        try:
            names = await self._children(watched=True)
            for name in sorted(names, key=_number):
                if _number(name) > self._seen:
                    await self._take_one(f"{CONFIG_CHANGES}/{name}")
                    self._seen = _number(name)
        except ZooKeeperError as error:
            # The next session reads everything; of this one the watch may be lost.
            _logger.debug("notifications are read again: {error}", error=error)
            await self._pause()
            if not self._stopped:
                self._runtime.clock.callLater(0, self._changed)
        finally:
            self._lock.release()

    async def _take_one(self, path: str) -> None:
        try:
            data, _ = await self._zookeeper.get(path)
            entity_type, name = read_config_change(path, data)
        except NoNodeError:
            return  # old ones are removed after 15 minutes
        except ZnodeError as error:
            _logger.error("{error}: what changed is read with the next session", error=error)
            return
        found = _Found({}, {}, {})
        await self._entity(found, entity_type, name)
        self._state.set_configs(found.configs, found.quotas, found.scram)

    def _pause(self) -> Deferred[None]:
        return deferLater(self._runtime.clock, _RETRY_MS / 1000, lambda: None)  # type: ignore[arg-type]


def _number(name: str) -> int:
    digits = name.removeprefix(CONFIG_CHANGE_PREFIX)
    return int(digits) if is_digits(digits) else -1


def _log_failure(failure: Failure) -> None:
    if failure.check(CancelledError) is None:
        _logger.failure("reading changed settings failed", failure)
