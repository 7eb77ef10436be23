"""Settings change while the cluster runs: what the controller decides.

Owns the decisions on IncrementalAlterConfigs and AlterConfigs, and the checks of topic and broker
values.

1. A resource changes as a whole or not at all; others of the request are not touched by its
   refusal.
2. Only what differs is written.
3. When the minimum ISR of a topic or of the cluster changes, the eligible leader replicas that
   depend on it are cleared (KIP-966).

Source: Kafka's `ConfigurationControlManager`, `ConfigAdminManager`, KIP-339; `RL 1.11`. Not here:
loggers (the broker's own), permission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from twisted_broker.cluster.cluster_view import ClusterView
from twisted_broker.cluster.stored_settings import check_client_metrics, check_group
from twisted_broker.config import (
    BROKER_SETTINGS,
    LISTENER_PREFIX,
    LISTENER_SETTINGS,
    PER_BROKER_SETTINGS,
    REFUSED,
    TOPIC_SETTINGS,
    may_change,
    override_row,
)
from twisted_broker.image.metadata_image import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)
from twisted_broker.java_numbers import is_digits
from twisted_broker.known_settings import (
    broker_settings,
    client_metrics_settings,
    group_settings,
)
from twisted_broker.log_config import check_compaction_lags, check_topic_overrides, topic_value
from twisted_broker.settings import ConfigError, Setting, Type, text_of
from twisted_broker.topic_names import name_problem
from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages import configs as configs_messages
from twisted_broker.wire.messages import metadata_records as records
from twisted_broker.wire.schema import Record

SET, DELETE, APPEND, SUBTRACT = range(4)
_MIN_ISR = "min.insync.replicas"
Values = dict[str, str]
Answer = TypeVar("Answer")
_Named = (
    configs_messages.AlterConfigsRequestAlterableConfig
    | configs_messages.IncrementalAlterConfigsRequestAlterableConfig
)
Edit = configs_messages.IncrementalAlterConfigsRequestAlterableConfig


def incremental_alter_configs(
    view: ClusterView,
    request: configs_messages.IncrementalAlterConfigsRequest,
    counts: Counter[tuple[int, str]] | None = None,
) -> tuple[list[Record], configs_messages.IncrementalAlterConfigsResponse]:
    """The records of all resources whose change is accepted, and the answer, which has the
    refusals. With `validate_only` no records.

    `counts`: how often the whole request names each resource, for a part of it.
    """

    def wanted(
        resource: configs_messages.IncrementalAlterConfigsRequestAlterConfigsResource,
    ) -> Values:
        check_names(resource.configs)
        own = view.image.config(resource.resource_type, resource.resource_name)
        return edited(own, resource.configs, view, resource.resource_type)

    found, results = _each(
        view,
        request.resources,
        wanted,
        configs_messages.IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
        counts,
    )
    return (
        [] if request.validate_only else found
    ), configs_messages.IncrementalAlterConfigsResponse(responses=results)


def alter_configs(
    view: ClusterView,
    request: configs_messages.AlterConfigsRequest,
    counts: Counter[tuple[int, str]] | None = None,
) -> tuple[list[Record], configs_messages.AlterConfigsResponse]:
    """As above for the older call, which replaces all settings of a resource."""
    found, results = _each(
        view,
        request.resources,
        replaced,
        configs_messages.AlterConfigsResponseAlterConfigsResourceResponse,
        counts,
    )
    return ([] if request.validate_only else found), configs_messages.AlterConfigsResponse(
        responses=results
    )


def replaced(resource: configs_messages.AlterConfigsRequestAlterConfigsResource) -> Values:
    """A resource's own settings after AlterConfigs. Raises BrokerError."""
    check_names(resource.configs)
    values: Values = {}
    for entry in resource.configs:
        if entry.value is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"setting {entry.name} has no value")
        values[entry.name] = entry.value
    return values


def check_names(configs: Sequence[_Named]) -> None:
    """Raises INVALID_REQUEST where one comes twice."""
    if len({entry.name for entry in configs}) < len(configs):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a setting is named twice")


def _each(
    view: ClusterView,
    resources: Sequence[Any],
    wanted: Callable[[Any], Values],
    answer: Callable[..., Answer],
    counts: Mapping[tuple[int, str], int] | None = None,
) -> tuple[list[Record], list[Answer]]:
    """The records of those whose change is accepted, and an answer for each.

    `wanted(resource)`: its own settings as they are to be.
    """
    if counts is None:
        counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    found: list[Record] = []
    results = []
    for resource in resources:
        key = (resource.resource_type, resource.resource_name)
        code, message = ErrorCode.NONE, None
        try:
            check_once(counts, key)
            found += _change(view, key, wanted(resource))
        except BrokerError as error:
            code, message = error.code, error.message
        results.append(
            answer(
                error_code=code, error_message=message, resource_type=key[0], resource_name=key[1]
            )
        )
    return found, results


def check_once(counts: Mapping[tuple[int, str], int], key: tuple[int, str]) -> None:
    """A resource stands in a request once. Raises BrokerError(INVALID_REQUEST)."""
    if counts[key] > 1:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "a resource is named twice")


def edited(
    current: Mapping[str, str], edits: Iterable[Edit], view: ClusterView, resource_type: int
) -> Values:
    """A resource's own settings after SET, DELETE, APPEND and SUBTRACT. Raises BrokerError."""
    values = dict(current)
    for edit in edits:
        if edit.config_operation == DELETE:
            values.pop(edit.name, None)
        elif edit.config_operation not in (SET, APPEND, SUBTRACT):
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"unknown operation {edit.config_operation} on setting {edit.name}",
            )
        elif edit.value is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"setting {edit.name} has no value")
        elif edit.config_operation == SET:
            values[edit.name] = edit.value
        else:
            values[edit.name] = _edited_list(values, edit, view, resource_type)
    return values


def _row(resource_type: int, name: str) -> Setting | None:
    if resource_type == TOPIC_RESOURCE:
        return TOPIC_SETTINGS.get(name)
    if resource_type == BROKER_RESOURCE:
        return BROKER_SETTINGS.get(name) or broker_settings().get(name)
    return (group_settings() | client_metrics_settings()).get(name)


def _edited_list(values: Values, edit: Edit, view: ClusterView, resource_type: int) -> str:
    row = _row(resource_type, edit.name)
    if row is None or row.type is not Type.LIST:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG, f"setting {edit.name} is not a list: set it as a whole"
        )
    if edit.name in values:
        present = values[edit.name]
    elif resource_type == TOPIC_RESOURCE:
        present = text_of(topic_value(edit.name, view.config, {})) or ""
    elif resource_type == BROKER_RESOURCE:
        present = text_of(view.config[edit.name]) or ""
    else:
        present = text_of(row.default) or ""
    entries = [part.strip() for part in present.split(",") if part.strip()]
    named = [part.strip() for part in (edit.value or "").split(",") if part.strip()]
    if edit.config_operation == APPEND:
        entries += [part for part in named if part not in entries]
    else:
        entries = [part for part in entries if part not in named]
    return ",".join(entries)


def _change(view: ClusterView, key: tuple[int, str], wanted: Values) -> list[Record]:
    """The records that turn a resource's settings into `wanted`, after all checks."""
    current = view.image.config(*key)
    check_values(view, key, current, wanted)
    found: list[Record] = [
        records.ConfigRecord(
            resource_type=key[0], resource_name=key[1], name=name, value=wanted.get(name)
        )
        for name in sorted(current.keys() | wanted.keys())
        if current.get(name) != wanted.get(name)
    ]
    if view.elr and current.get(_MIN_ISR) != wanted.get(_MIN_ISR):
        found.append(records.ClearElrRecord(topic_name=key[1] if key[0] == TOPIC_RESOURCE else ""))
    return found


def check_values(
    view: ClusterView, key: tuple[int, str], current: Mapping[str, str], wanted: Values
) -> None:
    """Raises BrokerError for a resource that is not there, or values that it cannot have."""
    resource_type, name = key
    try:
        if resource_type == TOPIC_RESOURCE:
            check_topic(view, name)
            check_topic_overrides(wanted, view.config)
        elif resource_type == BROKER_RESOURCE:
            _check_node(view, name)
            changed = {k: v for k, v in wanted.items() if current.get(k) != v}
            _check_broker_values(view, name, changed)
            if name:
                together = view.config.with_dynamic(view.config.cluster, wanted)
            else:
                together = view.config.with_dynamic(wanted, view.config.broker)
            check_compaction_lags(together, {})
            _check_minimum_isr(view, name, current, wanted)
        elif resource_type == CLIENT_METRICS_RESOURCE:
            check_client_metrics(name, wanted)
        elif resource_type == GROUP_RESOURCE:
            check_group(name, wanted, view.config)
        else:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"unknown resource type {resource_type}")
    except ConfigError as error:
        raise BrokerError(ErrorCode.INVALID_CONFIG, str(error)) from None


def check_topic(view: ClusterView, name: str) -> None:
    """Raises BrokerError for a name that is no topic's."""
    if not name:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            "a topic resource needs a name; set defaults for all topics on the brokers",
        )
    problem = name_problem(name)
    if problem is not None:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
    if name not in view.image.topics_by_name:
        raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _check_node(view: ClusterView, name: str) -> None:
    """A node that nobody knows has no settings; "" is the default of all."""
    if not name:
        return
    if not is_digits(name):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{name!r} is not a broker id")
    if int(name) not in view.image.brokers and int(name) not in view.image.controllers:
        raise BrokerError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {name} is not registered")


def _check_broker_values(view: ClusterView, name: str, changed: Mapping[str, str]) -> None:
    """Dynamic settings of the broker `name`, "" all: only those that act without a restart. Those
    of a listener can be set for one broker and one listener only.

    Raises BrokerError.
    """
    for setting in sorted(changed):
        row = (
            override_row(setting) or view.config.rows.get(setting) or broker_settings().get(setting)
        )
        if setting in LISTENER_SETTINGS:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"setting {setting} cannot change for all listeners while the broker runs: set "
                f"{LISTENER_PREFIX}NAME.{setting}",
            )
        is_own = setting.startswith(LISTENER_PREFIX) or setting in PER_BROKER_SETTINGS
        if is_own and not name and row is not None:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"setting {setting} is a broker's own: set it for one broker",
            )
        if setting in REFUSED or (row is not None and not may_change(setting, row)):
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"setting {setting} cannot change while the broker runs: set it in the "
                "configuration file and restart",
            )
        if row is not None:
            try:
                replace(row, name=setting).parse(changed[setting])
            except ConfigError as error:
                raise BrokerError(ErrorCode.INVALID_REQUEST, str(error)) from None


def _check_minimum_isr(
    view: ClusterView, name: str, current: Mapping[str, str], wanted: Values
) -> None:
    if not view.elr or current.get(_MIN_ISR) == wanted.get(_MIN_ISR):
        return
    if name:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"{_MIN_ISR} cannot be set for one broker while eligible leader replicas are "
            "enabled: set it for the whole cluster",
        )
    if _MIN_ISR not in wanted:
        raise BrokerError(
            ErrorCode.INVALID_CONFIG,
            f"the cluster's {_MIN_ISR} cannot be removed while eligible leader replicas are "
            "enabled",
        )
