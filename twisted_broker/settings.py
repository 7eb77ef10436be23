"""A setting: its type, its range, and how text becomes a value.

Owns `Setting` and the parsing of single values. The table of all settings is `config.py`.

1. A value is read as Java reads it (`java_numbers.py`). One that was accepted has the setting's
   Python type and lies in its range; nothing is checked again later.
2. A refused value becomes `ConfigError`, one line that names the setting, the value and what would
   be accepted.

Source: Kafka's `ConfigDef` (types, list syntax, range notation). Not here: passwords from providers
and values that name a class to load (RELIABILITY 5.2), on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from twisted_broker.java_numbers import INT_MAX, LONG_MAX, parse_double, parse_whole, trimmed

__all__ = [
    "INT_MAX",
    "LONG_MAX",
    "ConfigError",
    "PropertiesError",
    "Setting",
    "Type",
    "Value",
    "client_properties",
    "parse_properties",
    "property_lines",
    "text_of",
]

Value = bool | int | float | str | tuple[str, ...] | None


class ConfigError(Exception):
    """A setting is refused.

    `str()` is one line: name, value, and what is accepted; or, where no value would be, the
    `reason`.
    """

    def __init__(self, name: str, value: object, accepted: str, reason: str = "") -> None:
        self.name, self.value, self.accepted = name, value, accepted
        super().__init__(f"setting {name}={value!r} is refused: {reason or 'it takes ' + accepted}")


class PropertiesError(Exception):
    """A file of properties cannot be used; `str()` is one line without a value."""


class Type(Enum):
    """Kafka's type of a setting, with the number that DescribeConfigs carries."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_LIMITS = {
    Type.INT: (-(2**31), INT_MAX),
    Type.SHORT: (-(2**15), 2**15 - 1),
    Type.LONG: (-(2**63), LONG_MAX),
}
# What Java's `\s` takes, around the commas of a list.
_SPACES = " \t\n\v\f\r"
_TEXTS = (Type.STRING, Type.CLASS, Type.PASSWORD)
_NUMBER_NAMES = {
    Type.INT: "a whole number",
    Type.SHORT: "a whole number",
    Type.LONG: "a whole number",
    Type.DOUBLE: "a number",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table.

    `low`, `high` bound a number; `choices` bound a string or each entry of a list; `extra` is one
    more number allowed outside the bounds. `live` says that a change acts without a restart.
    `broker` is, for a topic setting, the broker settings that give its default, most specific
    first, each with the factor to the topic's unit.
    """

    name: str
    type: Type
    default: Value
    doc: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    extra: float | None = None
    choices: tuple[str, ...] = ()
    nullable: bool = False
    live: bool = False
    broker: tuple[tuple[str, int], ...] = ()
    internal: bool = False

    def with_default(self, default: Value) -> Setting:
        return replace(self, default=default)

    def behind(self, broker: tuple[tuple[str, int], ...]) -> Setting:
        """The same row with these broker settings behind it."""
        return replace(self, broker=broker)

    def parse(self, text: str | None) -> Value:
        """The typed value of `text`; raises ConfigError."""
        if text is None or (text == "" and self.nullable):
            if self.nullable:
                return None
            raise ConfigError(self.name, text, self.accepted())
        return self._checked(self._typed(trimmed(text)), text)

    def _typed(self, text: str) -> Value:
        if self.type is Type.BOOLEAN:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise ConfigError(self.name, text, self.accepted())
            return lowered == "true"
        if self.type is Type.LIST:
            parts = (part.strip(_SPACES) for part in text.split(","))
            return tuple(part for part in parts if part)
        if self.type in _TEXTS:
            return text
        try:
            return parse_double(text) if self.type is Type.DOUBLE else parse_whole(text)
        except ValueError:
            raise ConfigError(self.name, text, self.accepted()) from None

    def _checked(self, value: Value, text: str) -> Value:
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int | float):
            good = value == self.extra or self._in_range(value)
        elif isinstance(value, tuple):
            good = not self.choices or all(entry in self.choices for entry in value)
        else:
            good = not self.choices or value in self.choices
        if not good:
            raise ConfigError(self.name, text, self.accepted())
        return value

    def nearest(self, text: str) -> str | None:
        """What is obeyed of a value that is stored, perhaps by another version that has other
        ranges: the value where it is accepted, else the nearest number that is; None: nothing.
        """
        try:
            self.parse(text)
        except ConfigError:
            # Earlier versions of ours took underscores: a retention that somebody wrote so counts.
            plain = trimmed(text) if self.type in _TEXTS else trimmed(text).replace("_", "")
            try:
                value = self._typed(plain)
            except ConfigError:
                return None
            if isinstance(value, bool) or not isinstance(value, int | float):
                return None
            low, high = self._bounds()
            return text_of(type(value)(min(max(value, low), high)))
        return text

    def _in_range(self, value: float) -> bool:
        low, high = self._bounds()
        return low <= value <= high

    def _bounds(self) -> tuple[float, float]:
        low, high = _LIMITS.get(self.type, (float("-inf"), float("inf")))
        return low if self.low is None else self.low, high if self.high is None else self.high

    def accepted(self) -> str:
        """What the setting takes, in words: for errors and for the documentation."""
        if self.type is Type.BOOLEAN:
            return "true or false"
        if self.choices:
            of = "any of " if self.type is Type.LIST else "one of "
            return of + ", ".join(choice or "(empty)" for choice in self.choices)
        if self.type in _TEXTS or self.type is Type.LIST:
            return "a list separated by commas" if self.type is Type.LIST else "text"
        bounds = []
        limits: tuple[float | None, float | None] = _LIMITS.get(self.type, (None, None))
        for word, own, limit in (("from", self.low, limits[0]), ("to", self.high, limits[1])):
            bound = limit if own is None else own
            if bound is not None:
                bounds.append(
                    f"{word} {bound:g}" if isinstance(bound, float) else f"{word} {bound}"
                )
        also = "" if self.extra is None else f", or {self.extra:g}"
        return (
            " ".join([_NUMBER_NAMES[self.type], *bounds])
            + (f" ({self.unit})" if self.unit else "")
            + also
        )


def text_of(value: Value) -> str | None:
    """A typed value as Kafka prints it (DescribeConfigs, properties files)."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    # A double in Java's form.
    return str(value).replace("e+", "E") if isinstance(value, float) else str(value)


def parse_properties(text: str) -> dict[str, str]:
    """A Java properties file: comments by # or !, separators =, : or blank, lines continued by a
    backslash, \\uXXXX escapes. Raises PropertiesError.
    """
    found: dict[str, str] = {}
    for _, line in _logical_lines(text):
        key, value = _split_property(line)
        found[_unescape(key)] = _unescape(value)
    return found


def client_properties(data: bytes) -> dict[str, str]:
    """A client's file of properties. Raises PropertiesError, also for a name without a value."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise PropertiesError("it is not a text in UTF-8") from None
    for number, name, has_value in property_lines(text):
        if not has_value:
            raise PropertiesError(f"line {number}: {name!r} has no value; write NAME=VALUE")
    return parse_properties(text)


def property_lines(text: str) -> list[tuple[int, str, bool]]:
    """(number of the line on which it begins, name, whether anything separates a value from it)
    of each entry of a properties file. Raises PropertiesError.
    """
    found = []
    for number, line in _logical_lines(text):
        name, _ = _split_property(line)
        found.append((number, _unescape(name), len(name) < len(line)))
    return found


def _logical_lines(text: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    pending, began = "", 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        if not pending:
            began = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        lines.append((began, pending + line))
        pending = ""
    return [*lines, (began, pending)] if pending else lines


def _split_property(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    rest = line[position:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return line[:position], rest


_LINE_END = re.compile(r"\r\n|\r|\n")
_FOUR = re.compile("[0-9a-fA-F]{4}")
_ESCAPES: Mapping[str, str] = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character != "\\" or position + 1 == len(text):
            out.append(character)
            position += 1
        elif text[position + 1] == "u":
            digits = text[position + 2 : position + 6]
            if not _FOUR.fullmatch(digits):
                raise PropertiesError(f"\\u{digits} is not \\u and four hex digits")
            out.append(chr(int(digits, 16)))
            position += 6
        else:
            out.append(_ESCAPES.get(text[position + 1], text[position + 1]))
            position += 2
    # Two escapes may be the halves of one character; half a one is none.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
