"""Lines of `sasl.jaas.config`: one login module with its options.

1. Only the three modules of `MODULES` are known. Nothing is ever loaded by a name that a line
   holds, and no option is a file or an address that is opened.
2. An error names the setting and what is wrong, never a value of the line.

Source: Kafka's `JaasConfig` (a `StreamTokenizer` of Java: names, quoted values with escapes).
Not here: which setting holds the line (`settings.py` of this package).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
MODULES = frozenset({PLAIN, SCRAM, OAUTHBEARER})
_CONTROL_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<word>[^\s"'=;]+)|(?P<sign>[=;]))"""
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_USER = "user_"


class JaasError(ValueError):
    """A line that cannot be used; `str()` says what it should be."""


class LoginModule(NamedTuple):
    """`options` may hold passwords: its `repr` shows none."""

    module: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.module})"

    @property
    def users(self) -> dict[str, str]:
        """Passwords by name, of the `user_NAME` options."""
        return {
            name[len(_USER) :]: value
            for name, value in self.options.items()
            if name.startswith(_USER)
        }


def parse_jaas(line: str) -> LoginModule:
    """Raises JaasError."""
    tokens = _tokens(line)
    if not tokens:
        raise JaasError('MODULE required OPTION="VALUE" ...; but it is empty')
    module = tokens[0][1]
    if module not in MODULES:
        raise JaasError(f"one of the login modules {', '.join(sorted(MODULES))}")
    if len(tokens) < 2 or tokens[1][1].lower() not in _CONTROL_FLAGS:
        raise JaasError("the word required behind the login module")
    options: dict[str, str] = {}
    position = 2
    while position < len(tokens) and tokens[position] != ("sign", ";"):
        some = tokens[position : position + 3]
        if (
            len(some) < 3
            or some[0][0] == "sign"
            or some[1] != ("sign", "=")
            or some[2][0] == "sign"
        ):
            raise JaasError(f'NAME="VALUE" as option number {len(options) + 1}')
        name = some[0][1]
        if name in options:
            raise JaasError(f"each option once; number {len(options) + 1} is there twice")
        options[name] = some[2][1]
        position += 3
    if position != len(tokens) - 1:
        raise JaasError("one login module, and a semicolon at the end")
    return LoginModule(module, options)


def _tokens(line: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    end = len(line.rstrip())
    while position < end:
        match = _TOKEN.match(line, position)
        if match is None:
            raise JaasError("quotation marks that are closed")
        kind = match.lastgroup or ""
        text = match[kind]
        if kind == "string":
            text = _ESCAPE.sub(lambda each: _ESCAPES.get(each[1], each[1]), text[1:-1])
            kind = "word"
        found.append((kind, text))
        position = match.end()
    return found
