"""From a certificate's subject to the name of a principal: `ssl.principal.mapping.rules`.

Owns the parsing and the application of the rules, and the written form of a subject.

1. The first rule whose pattern matches all of the subject gives the name; where none does, the
   client is refused: nobody gets a name that no rule allows.
2. What a client's authority lets it have in a subject does not hold others up. A subject is at most
   `MOST_CHARACTERS` long where a pattern looks at it, and one that does not match is told in linear
   time, where the pattern is of the kind that `linear_pattern.py` knows: Python's own matcher would
   try `(.*?),OU=(.*?),O=(.*?)` at all places of many commas. That one finds the groups, afterwards.
3. A subject is written as Java writes it (RFC 2253: the most specific part first, what has no short
   name by its number and its bytes), so that rules and ACLs of a Kafka cluster mean the same here.

Source: Kafka's `SslPrincipalMapper`; RFC 2253; Java's `X500Principal.getName`. Not here:
certificates (`key_store.py`), ACLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from twisted_broker.linear_pattern import LinearPattern
from twisted_broker.settings import ConfigError

MAPPING_RULES = "ssl.principal.mapping.rules"
MOST_CHARACTERS = 1_000
"""Of a pattern, and of a subject that one looks at."""
MOST_RULES, MOST_TEXT = 100, 10_000
_PART = r"(?:\\.|[^\\/])*"
_RULE = re.compile(rf"\s*(?:(DEFAULT)|RULE:({_PART})/({_PART})/([LU]?))\s*(?:,\s*|\Z)")
_REFERENCE = re.compile(r"\\(.)|\$([0-9]+)")
# What RFC 2253 names; Java writes all others by their number.
_SHORT_NAMES = {
    "2.5.4.3": "CN",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "2.5.4.6": "C",
    "2.5.4.9": "STREET",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_SPECIAL = re.compile(r'([,+"\\<>;#])')


class NoRuleMatches(Exception):
    """`str()` is one line."""


class _Rule(NamedTuple):
    """`pattern` None: the subject itself. `linear` None: the pattern has what that has not."""

    pattern: re.Pattern[str] | None
    linear: LinearPattern | None
    replacement: str
    case: str

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        if len(subject) > MOST_CHARACTERS:
            raise NoRuleMatches(
                f"the subject has {len(subject)} characters: {MAPPING_RULES} looks at "
                f"{MOST_CHARACTERS} at most"
            )
        if self.linear is not None and not self.linear.matches(subject):
            return None
        match = self.pattern.fullmatch(subject)
        if match is None:
            return None
        name = _expanded(self.replacement, match)
        return {"L": name.lower, "U": name.upper}.get(self.case, lambda: name)()


class PrincipalMapper:
    """The rules of one listener. Raises ConfigError."""

    def __init__(self, rules: str) -> None:
        self._text = rules
        self._rules = _parsed(rules)

    def name_of(self, subject: str) -> str:
        """Raises NoRuleMatches."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                return name
        raise NoRuleMatches(
            f"no rule of {MAPPING_RULES} matches the subject {subject!r}: add one, or DEFAULT"
        )


def _parsed(text: str) -> list[_Rule]:
    text = text.strip() or "DEFAULT"
    found: list[_Rule] = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None or len(text) > MOST_TEXT or len(found) == MOST_RULES:
            raise _refused(text)
        position = match.end()
        default, pattern, replacement, case = match.groups()
        if default:
            found.append(_Rule(None, None, "", ""))
            continue
        pattern = pattern.replace(r"\/", "/")
        if len(pattern) > MOST_CHARACTERS:
            raise _refused(text)
        try:
            compiled = re.compile(pattern, re.ASCII)
        except (re.error, OverflowError, RecursionError):
            raise _refused(text) from None
        numbers = [int(number) for _, number in _REFERENCE.findall(replacement) if number]
        if max(numbers, default=0) > compiled.groups:
            raise _refused(text)
        found.append(_Rule(compiled, _linear(pattern), replacement, case))
    return found


def _linear(pattern: str) -> LinearPattern | None:
    try:
        return LinearPattern(pattern)
    except ValueError:
        return None


def _refused(text: str) -> ConfigError:
    return ConfigError(
        MAPPING_RULES,
        text,
        f"a list of DEFAULT and RULE:PATTERN/REPLACEMENT/[LU], {MOST_RULES} of them at most, each "
        f"pattern of {MOST_CHARACTERS} characters at most, all of {MOST_TEXT}",
    )


def _expanded(replacement: str, match: re.Match[str]) -> str:
    """`$1` and its like by what the group matched, `\\x` by x."""
    return _REFERENCE.sub(
        lambda found: found[1] if found[1] else match[int(found[2])] or "", replacement
    )


def subject_text(parts: Iterable[Sequence[tuple[str, str, bytes]]]) -> str:
    """A subject as Java writes it. `parts` in the certificate's order, each of one or several
    (number of the attribute, its text, its encoded value).
    """
    written = ["+".join(_attribute(*each) for each in part) for part in parts]
    return ",".join(reversed(written))


def _attribute(number: str, text: str, encoded: bytes) -> str:
    short = _SHORT_NAMES.get(number)
    if short is None:
        return f"{number}=#{encoded.hex()}"
    escaped = _SPECIAL.sub(r"\\\1", text).replace("\0", "\\00")
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(text) > 1:
        escaped = escaped[:-1] + "\\ "
    return f"{short}={escaped}"
