"""What a test waits for: `isr("orders", 0) == {1, 2, 3}`, and what goes together by `&`, `|`, `~`.

Owns `Condition` and what one compares.

1. A condition is a value: it asks nothing, has no truth of its own, and goes to the cluster's
   process as JSON.
2. A wrong name or value is refused where the condition is written, with the right ones.

Source: our own. Not here: what holds (`condition_values.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GROUP_STATES = (
    "Assigning",
    "CompletingRebalance",
    "Dead",
    "Empty",
    "PreparingRebalance",
    "Reconciling",
    "Stable",
)
_ALL, _EQUAL = ("==", "!=", ">=", "<="), ("==", "!=")
TRANSACTION_STATES = (
    "CompleteAbort",
    "CompleteCommit",
    "Dead",
    "Empty",
    "Ongoing",
    "PrepareAbort",
    "PrepareCommit",
    "PrepareEpochFence",
)
_WORDS = {"group.state": GROUP_STATES, "transaction.state": TRANSACTION_STATES}
# What is compared: the operators, and the names of what it is of.
_SUBJECTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "isr": (_ALL, ("topic", "partition")),
    "leader": (_EQUAL, ("topic", "partition")),
    "high_watermark": (_ALL, ("topic", "partition")),
    "log_end": (_ALL, ("topic", "partition")),
    "records": (_ALL, ("topic",)),
    "group.state": (_EQUAL, ("group",)),
    "group.members": (_ALL, ("group",)),
    "group.lag": (_ALL, ("group",)),
    "group.assigned": (_ALL, ("group", "client")),
    "requests": (_ALL, ("api",)),
    "transaction.state": (_EQUAL, ("transactional_id",)),
    "in_sync": (_EQUAL, ()),
}


class Condition:
    """One that a cluster is asked to wait for: `cluster.wait_until(condition)`."""

    __slots__ = ("form",)

    def __init__(self, form: Mapping[str, Any]) -> None:
        self.form = dict(form)
        """as JSON has it"""

    def __and__(self, other: Condition) -> Condition:
        return _joined("and", self, other)

    def __or__(self, other: Condition) -> Condition:
        return _joined("or", self, other)

    def __invert__(self) -> Condition:
        return Condition({"not": self.form})

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self} is waited for, by cluster.wait_until(..); join conditions with &, | and ~"
        )

    def __str__(self) -> str:
        return text_of(self.form)

    __repr__ = __str__


def _joined(word: str, one: Condition, other: Condition) -> Condition:
    if not isinstance(other, Condition):
        raise TypeError(f"{other!r} is no condition: put each comparison in parentheses")
    parts = [each.form.get(word) or [each.form] for each in (one, other)]
    return Condition({word: [*parts[0], *parts[1]]})


class Subject:
    """What a condition compares, as `leader("orders", 0)`."""

    __slots__ = ("_of", "_what")

    def __init__(self, what: str, of: Mapping[str, Any]) -> None:
        self._what, self._of = what, dict(of)

    def _compared(self, operator: str, value: object) -> Condition:
        if isinstance(value, set | frozenset | tuple):
            value = [list(each) if isinstance(each, tuple) else each for each in sorted(value)]
        form = {"what": self._what, **self._of, "is": operator, "value": value}
        check(form)
        return Condition(form)

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]
        return self._compared("==", value)

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]
        return self._compared("!=", value)

    def __ge__(self, value: object) -> Condition:
        return self._compared(">=", value)

    def __le__(self, value: object) -> Condition:
        return self._compared("<=", value)

    def __gt__(self, value: object) -> Condition:
        return self._compared(">", value)

    def __lt__(self, value: object) -> Condition:
        return self._compared("<", value)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError(f"compare it: {_subject_text({'what': self._what, **self._of})} == ..")


def isr(topic: str, partition: int) -> Subject:
    """The brokers in sync, a set: `==`, `!=`, `>=` (these at least), `<=` (none but these)."""
    return Subject("isr", {"topic": topic, "partition": partition})


def leader(topic: str, partition: int) -> Subject:
    """The id of the broker that leads it and knows so; None: none does. `==`, `!=`."""
    return Subject("leader", {"topic": topic, "partition": partition})


def high_watermark(topic: str, partition: int) -> Subject:
    """The leader's: how far consumers may read."""
    return Subject("high_watermark", {"topic": topic, "partition": partition})


def log_end(topic: str, partition: int) -> Subject:
    """The leader's: the offset of the next record."""
    return Subject("log_end", {"topic": topic, "partition": partition})


def records(topic: str) -> Subject:
    """How many can be read in all of its partitions, as `Topic.records` reads them."""
    return Subject("records", {"topic": topic})


class GroupSubject:
    """A consumer group: `.state`, Kafka's word; `.members` and `.lag`, how many;
    `.assigned(client)`: a set of (topic, partition).
    """

    def __init__(self, name: str) -> None:
        self._of = {"group": name}

    def __getattr__(self, name: str) -> Subject:
        known = [
            each.removeprefix("group.")
            for each, (_, of) in _SUBJECTS.items()
            if each.startswith("group.") and of == ("group",)
        ]
        if name not in known:
            found = ", ".join(sorted([*known, "assigned(client)"]))
            raise AttributeError(f"a group has {found}, not {name}")
        return Subject(f"group.{name}", self._of)

    def assigned(self, client: str) -> Subject:
        """What that client's members have, by client id or member id: `== {("orders", 0)}`, `!=`,
        `>=` (these at least), `<=` (none but these).
        """
        return Subject("group.assigned", {**self._of, "client": client})


def group(name: str) -> GroupSubject:
    """Conditions on a consumer group: `group("shop").state == "Stable"`."""
    return GroupSubject(name)


class TransactionSubject:
    """A transactional id: `.state`, Kafka's word."""

    def __init__(self, transactional_id: str) -> None:
        self.state = Subject("transaction.state", {"transactional_id": transactional_id})


def transaction(transactional_id: str) -> TransactionSubject:
    """Conditions on a transactional id: `transaction("t").state == "Ongoing"`."""
    return TransactionSubject(transactional_id)


def requests(api: str) -> Subject:
    """How many requests of that API clients sent, as far as the trace goes back."""
    return Subject("requests", {"api": api})


def in_sync() -> Condition:
    """Every replica of every partition is in the ISR."""
    return Condition({"what": "in_sync", "is": "==", "value": True})


def parts_of(form: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """`and`, `or` or `not` with what it joins; empty for a comparison."""
    for word in ("and", "or"):
        if word in form:
            return word, form[word]
    return ("not", [form["not"]]) if "not" in form else ("", [])


def check(form: Mapping[str, Any]) -> None:
    """Raises TypeError, ValueError: what JSON has is no condition."""
    word, parts = parts_of(form)
    if word:
        for each in parts:
            check(each)
        return
    what, operator, value = form.get("what", ""), form.get("is", ""), form.get("value")
    if what not in _SUBJECTS:
        raise ValueError(f"there are {', '.join(_SUBJECTS)}, not {what!r}")
    operators, names = _SUBJECTS[what]
    if {*form} != {"what", "is", "value", *names}:
        raise TypeError(f"{what} takes {', '.join(names) or 'nothing'}")
    text = _subject_text(form)
    if operator not in operators:
        raise TypeError(f"{text} is compared with {', '.join(operators)}, not {operator}")
    for name in names:
        _check_value(f"the {name} of {text}", form[name], int if name == "partition" else str)
    if what == "isr":
        if not isinstance(value, list):
            raise TypeError(f"{text} is a set of broker ids, not {value!r}")
        for each in value:
            _check_value(f"each broker of {text}", each, int)
    elif what == "group.assigned":
        pairs = value if isinstance(value, list) else [value]
        if not all(isinstance(each, list) and [*map(type, each)] == [str, int] for each in pairs):
            raise TypeError(f"{text} is a set of (topic, partition), not {value!r}")
    elif what in _WORDS:
        if value not in _WORDS[what]:
            raise ValueError(f"{text} is one of {', '.join(_WORDS[what])}, not {value!r}")
    elif not (what == "leader" and value is None):
        _check_value(text, value, bool if what == "in_sync" else int)


def _check_value(what: str, value: object, wanted: type) -> None:
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        kind = {int: "a number", str: "text", bool: "True or False"}[wanted]
        raise TypeError(f"{what} is {kind}, not {value!r}")


def text_of(form: Mapping[str, Any]) -> str:
    """As it is written in a test."""
    word, parts = parts_of(form)
    if word == "not":
        return f"~({text_of(parts[0])})"
    if word:
        return {"and": " & ", "or": " | "}[word].join(f"({text_of(each)})" for each in parts)
    if form["what"] == "in_sync":
        return "in_sync()"
    return f"{_subject_text(form)} {form['is']} {value_text(form['what'], form['value'])}"


def _subject_text(form: Mapping[str, Any]) -> str:
    what, *rest = form["what"].split(".")
    of = [repr(form[name]).replace("'", '"') for name in _SUBJECTS[form["what"]][1]]
    if "client" in form:
        return f"{what}({of[0]}).{rest[0]}({of[1]})"
    return f"{what}({', '.join(of)})" + "".join(f".{each}" for each in rest)


def value_text(what: str, value: Any) -> str:
    """A value as Python writes it; an ISR is a set."""
    if what == "isr":
        return f"{{{', '.join(map(str, value))}}}"
    if what == "group.assigned":
        return f"{{{', '.join(repr(tuple(each)) for each in value)}}}"
    return f'"{value}"' if isinstance(value, str) else repr(value)
