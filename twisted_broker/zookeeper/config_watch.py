"""Settings of topics and brokers, quotas of users, clients and addresses, and SCRAM credentials of
users, from `/config`.

Owns `ConfigWatch`: reads them at the start, of new topics, and at each notification.

1. A new session reads everything again: what was announced in between may be gone.
2. A node that cannot be understood is one line, and leaves the settings as they were.

Source: KRAFT 2.1; Kafka 3.9's `ZkConfigManager`. Not here: what settings do (`config.py`) and
quotas (`security/quota`), when notifications are read (`change_notifications.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from twisted.logger import Logger

from twisted_broker.image.metadata_image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ConfigKey,
    QuotaEntity,
)
from twisted_broker.interfaces import Runtime
from twisted_broker.wire.messages.metadata_records import UserScramCredentialRecord
from twisted_broker.zookeeper.change_notifications import ChangeNotifications
from twisted_broker.zookeeper.cluster_state import ClusterState
from twisted_broker.zookeeper.port import IZooKeeper, NoNodeError
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
        self._zookeeper, self._state = zookeeper, state
        self._notifications = ChangeNotifications(
            runtime,
            zookeeper,
            (CONFIG_CHANGES,),
            CONFIG_CHANGE_PREFIX,
            self._take_one,
            "settings",
        )

    def stop(self) -> None:
        """Nothing is read any more."""
        self._notifications.stop()

    async def load(self) -> None:
        """All settings, and the watch for changes; tried again until it works."""
        await self._notifications.tried_again(self._load)

    async def load_topics(self, names: Collection[str]) -> None:
        """Of topics that were just made; waits until ZooKeeper answers."""

        async def read() -> None:
            found = _Found({}, {}, {})
            for name in names:
                await self._entity(found, "topics", name)
            self._state.set_configs(found.configs, found.quotas, found.scram)

        # Under the lock: a change that is taken meanwhile would be overwritten by what was read
        # before it.
        if names:
            await self._notifications.tried_again(read)

    async def _load(self) -> None:
        await self._notifications.begin()
        found = _Found({}, {}, {})
        for entity_type in (*_KINDS, "users", "clients", "ips"):
            for name in await self._names(f"/config/{entity_type}"):
                await self._entity(found, entity_type, name)
                if entity_type == "users":
                    for client in await self._names(f"/config/users/{name}/clients"):
                        await self._entity(found, entity_type, f"{name}/clients/{client}")
        image = self._state.image
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

    async def _take_one(self, path: str) -> None:
        data, _ = await self._zookeeper.get(path)
        try:
            entity_type, name = read_config_change(path, data)
        except ZnodeError as error:
            _logger.error("{error}: what changed is read with the next session", error=error)
            return
        found = _Found({}, {}, {})
        await self._entity(found, entity_type, name)
        self._state.set_configs(found.configs, found.quotas, found.scram)
