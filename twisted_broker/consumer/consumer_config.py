"""The settings of a consumer, by their Kafka names.

Owns `ConsumerConfig`: defaults, types, limits.

1. A value is checked when the consumer is made: what is wrong is one line that names the setting
   and what it may be.
2. Settings of TLS and SASL are those of a Java client, by `security/client_security.py`.

Source: RL 7.3-7.5; Kafka's `ConsumerConfig` of 4.3.1, and of 0.8 for what has no successor. Not
here: what the settings do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from twisted_broker.consumer.errors import InvalidSetting
from twisted_broker.java_numbers import is_digits, parse_whole, trimmed
from twisted_broker.security.client_security import ClientSecurity, is_security
from twisted_broker.settings import ConfigError

SMALLEST, LARGEST, NONE = "smallest", "largest", "none"
_RESETS: Final = {
    "smallest": SMALLEST,
    "earliest": SMALLEST,
    "largest": LARGEST,
    "latest": LARGEST,
    "none": NONE,
}
_ISOLATION: Final = ("read_uncommitted", "read_committed")
STRATEGIES: Final = ("range", "roundrobin")
_INT_MAX: Final = 2**31 - 1


class _Integer(NamedTuple):
    default: int
    least: int


_INTEGERS: Final = {
    "fetch.wait.max.ms": _Integer(100, 0),
    "fetch.min.bytes": _Integer(1, 0),
    "fetch.message.max.bytes": _Integer(1 << 20, 1),
    "fetch.max.bytes": _Integer(50 << 20, 1),
    "num.consumer.fetchers": _Integer(1, 1),
    "refresh.leader.backoff.ms": _Integer(200, 1),
    "queued.max.message.chunks": _Integer(2, 1),
    "consumer.timeout.ms": _Integer(-1, -1),
    "request.timeout.ms": _Integer(30_000, 1),
    "metadata.max.age.ms": _Integer(300_000, 1),
    "auto.commit.interval.ms": _Integer(5_000, 1),
    "session.timeout.ms": _Integer(45_000, 1),
    "heartbeat.interval.ms": _Integer(3_000, 1),
    "rebalance.timeout.ms": _Integer(60_000, 1),
    "retry.backoff.ms": _Integer(100, 1),
}
_BOOLEANS: Final = {"check.crcs": True, "auto.commit.enable": True}
_TEXTS: Final = {
    "bootstrap.servers": "",
    "group.id": "",
    "group.instance.id": "",
    "client.id": "replog-consumer",
    "auto.offset.reset": LARGEST,
    "isolation.level": "read_uncommitted",
    "partition.assignment.strategy": "range",
}
# Java's consumer of today calls these otherwise.
_ALIASES: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "enable.auto.commit": "auto.commit.enable",
}
_NAMES: Final = (*_INTEGERS, *_BOOLEANS, *_TEXTS, *_ALIASES)


class ConsumerConfig:
    """`settings` by name, as text or as what they are; `token`: what gives tokens of OAUTHBEARER.
    Raises `InvalidSetting`.
    """

    def __init__(self, settings: Mapping[str, Any], token: Callable[[], str] | None = None) -> None:
        secured = {name: value for name, value in settings.items() if is_security(str(name))}
        self.security = security_of(secured, token)
        self._values: dict[str, Any] = {name: each.default for name, each in _INTEGERS.items()}
        self._values |= _BOOLEANS | _TEXTS
        for name, value in settings.items():
            if name in secured:
                continue
            if name not in _NAMES:
                near = get_close_matches(str(name), _NAMES, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise InvalidSetting(f"{name}: no consumer has this setting{hint}")
            self._values[_ALIASES.get(name, name)] = _checked(name, value)
        self.servers: list[tuple[str, int]] = _servers(self.text("bootstrap.servers"))
        if self.integer("heartbeat.interval.ms") >= self.integer("session.timeout.ms"):
            raise InvalidSetting(
                f"heartbeat.interval.ms={self.integer('heartbeat.interval.ms')}: must be less than "
                f"session.timeout.ms={self.integer('session.timeout.ms')}"
            )

    def integer(self, name: str) -> int:
        value: int = self._values[name]
        return value

    def boolean(self, name: str) -> bool:
        value: bool = self._values[name]
        return value

    def text(self, name: str) -> str:
        value: str = self._values[name]
        return value

    @property
    def reset(self) -> str:
        """SMALLEST, LARGEST or NONE."""
        return _RESETS[self.text("auto.offset.reset")]

    @property
    def reads_committed(self) -> bool:
        return self.text("isolation.level") == "read_committed"

    @property
    def strategies(self) -> list[str]:
        """Names of assignors, the preferred one first."""
        return [each.strip() for each in self.text("partition.assignment.strategy").split(",")]


def security_of(
    settings: Mapping[str, Any], token: Callable[[], str] | None = None
) -> ClientSecurity:
    """Of settings that are all of TLS or SASL. Raises `InvalidSetting`."""
    for name in settings:
        if not is_security(str(name)):
            raise InvalidSetting(f"{name}: this is no setting of TLS or SASL")
    try:
        return ClientSecurity({name: str(value) for name, value in settings.items()}, token)
    except ConfigError as error:
        raise InvalidSetting(str(error)) from None


def _checked(name: str, value: Any) -> Any:
    name = _ALIASES.get(name, name)
    if name in _INTEGERS:
        return _integer(name, value)
    if name in _BOOLEANS:
        words = {"true": True, "false": False}
        if str(value).lower() not in words:
            raise InvalidSetting(f"{name}={value}: must be true or false")
        return words[str(value).lower()]
    text = ",".join(value) if isinstance(value, list | tuple) else str(value)
    choices = {"auto.offset.reset": tuple(_RESETS), "isolation.level": _ISOLATION}.get(name)
    if choices is not None and text not in choices:
        raise InvalidSetting(f"{name}={text}: must be one of {', '.join(choices)}")
    if name == "partition.assignment.strategy":
        unknown = [each for each in text.split(",") if each.strip() not in STRATEGIES]
        if unknown:
            raise InvalidSetting(f"{name}={text}: must be a list of {', '.join(STRATEGIES)}")
    return text


def _integer(name: str, value: Any) -> int:
    least = _INTEGERS[name].least
    try:
        number = parse_whole(trimmed(value)) if isinstance(value, str) else int(value)
    except (TypeError, ValueError):
        number = least - 1
    if not least <= number <= _INT_MAX or isinstance(value, bool):
        raise InvalidSetting(f"{name}={value}: must be a whole number from {least} to {_INT_MAX}")
    return number


def _servers(text: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = each.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not host or not is_digits(port) or not 0 < int(port) < 65536:
            raise InvalidSetting(f"bootstrap.servers={text}: must be a list of HOST:PORT")
        found.append((host, int(port)))
    if not found:
        raise InvalidSetting("bootstrap.servers: must be set, to a list of HOST:PORT")
    return found
