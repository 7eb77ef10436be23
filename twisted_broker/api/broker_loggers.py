"""The loggers of this process as resource BROKER_LOGGER (8): which there are, and their levels.

Owns the levels. The loggers are those of the program's modules, by the modules' names, and `root`
for all that have no level of their own.

1. A level acts at once and until the process ends; it is not stored.
2. What is refused changes nothing.
3. A logger without a level of its own has the one that `--log-level` gave to the nearest package
   around it; else that of `root`.

Source: Kafka's `RuntimeLoggerManager`, `LoggingController`; KIP-412. Not here: permission, the
resource's name (`api/configs.py`), where log lines go (the service's own options).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from twisted.logger import (
    FilteringLogObserver,
    ILogObserver,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    globalLogPublisher,
)

from twisted_broker.wire.errors import BrokerError, ErrorCode
from twisted_broker.wire.messages.configs import IncrementalAlterConfigsRequestAlterableConfig

ROOT = "root"
_PACKAGE = "twisted_broker"
_SET, _DELETE = 0, 1
_LEVELS = {
    "TRACE": LogLevel.debug,
    "DEBUG": LogLevel.debug,
    "INFO": LogLevel.info,
    "WARN": LogLevel.warn,
    "ERROR": LogLevel.error,
    "FATAL": LogLevel.critical,
}
_ALL = "TRACE"
_own: dict[str, str] = {}
_at_start: dict[str, str] = {}


def levels() -> dict[str, str]:
    """Logger -> its level in force, in the order of names."""
    return {name: _level(name, _own) for name in sorted([ROOT, *_loggers()])}


def start_with(levels: Mapping[str, str]) -> None:
    """The levels of a start: package or module -> level, "" for `root`. Those of modules that are
    loaded later follow with the next `apply`.
    """
    _at_start.clear()
    _at_start.update(levels)
    _apply()


def apply() -> None:
    """Gives every logger that is loaded by now its level."""
    if _at_start or _own:
        _apply()


def _apply() -> None:
    for name, logger in _loggers().items():
        logger.observer = _observer(_level(name, _own))


def _level(name: str, own: Mapping[str, str]) -> str:
    if name in own:
        return own[name]
    package = name
    while package and name != ROOT:
        if package in _at_start:
            return _at_start[package]
        package = package.rpartition(".")[0]
    return own.get(ROOT, _at_start.get("", _ALL))


def change(edits: Sequence[IncrementalAlterConfigsRequestAlterableConfig], apply: bool) -> None:
    """Sets or takes back levels; only checks them unless `apply`. Raises BrokerError."""
    known = _loggers()
    wanted = dict(_own)
    for edit in edits:
        if edit.config_operation not in (_SET, _DELETE):
            raise BrokerError(
                ErrorCode.INVALID_REQUEST, "set or delete a logger's level, it is not a list"
            )
        if edit.config_operation == _SET and edit.value is None:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"logger {edit.name} has no level")
        if edit.config_operation == _DELETE and edit.name == ROOT:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "the root logger always has a level")
        if edit.name != ROOT and edit.name not in known:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"there is no logger {edit.name}")
        if edit.config_operation == _DELETE:
            wanted.pop(edit.name, None)
        elif edit.value not in _LEVELS:
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"{edit.value!r} is not a level: {edit.name} takes one of {', '.join(_LEVELS)}",
            )
        else:
            wanted[edit.name] = edit.value
    if apply:
        _own.clear()
        _own.update(wanted)
        for name, logger in known.items():
            logger.observer = _observer(_level(name, wanted))


def _loggers() -> dict[str, Logger]:
    """Those of the modules that are loaded."""
    found = {}
    for name, module in list(sys.modules.items()):
        logger = getattr(module, "_logger", None) if name.startswith(_PACKAGE) else None
        if isinstance(logger, Logger):
            found[name] = logger
    return found


def _observer(level: str) -> ILogObserver:
    if level == _ALL:
        return globalLogPublisher
    predicate = LogLevelFilterPredicate(defaultLogLevel=_LEVELS[level])
    return FilteringLogObserver(globalLogPublisher, [predicate])
