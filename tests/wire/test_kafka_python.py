"""The same bytes as kafka-python 3, built from the same values by name, for every message and
version that it knows.
"""

import importlib
import pkgutil
from random import Random
from typing import Any
from uuid import UUID

import kafka.protocol
import pytest

from tests.wire.sampling import Sampler, all_versions, snake_case, version_name
from twisted_broker.api.routes import ROUTES
from twisted_broker.wire.schema import Field, Message, Record, Struct, encode


def known_classes() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate" not in module.name:
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and getattr(value, "_json", None):
                    found[value._json["name"]] = value  # type: ignore[attr-defined]
    return found


KNOWN = known_classes()
PAIRS = [
    (cls, version)
    for cls, version in all_versions()
    if cls.__name__ in KNOWN and version <= KNOWN[cls.__name__].max_version
]


def translated(message: Struct, theirs: Any, version: int) -> Any:
    """Our message as one of theirs."""
    values = {}
    unset = type(message)()
    for field in message.FIELDS:
        value = getattr(message, field.name)
        # They write whatever tagged field was set.
        if field.is_in(version) and (field.tag is None or value != getattr(unset, field.name)):
            values[their_name(field, theirs)] = translated_value(field, value, theirs, version)
    return theirs(version=version, **values)


def their_name(field: Field, theirs: Any) -> str:
    """They renamed most bit fields of permissions, which they hold as sets of bit numbers."""
    return field.name if field.name in theirs._struct.fields else "authorized_operations"


def translated_value(field: Field, value: Any, theirs: Any, version: int) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [translated_value(field, one, theirs, version) for one in value]
    if isinstance(value, Struct):
        return translated(value, theirs._struct.fields[field.name].data_class, version)
    if their_name(field, theirs) == "authorized_operations":
        return {bit for bit in range(32) if value >> bit & 1}
    if "uuid" in (field.kind, field.element):
        return UUID(bytes=value)
    return value


@pytest.mark.parametrize(("cls", "version"), PAIRS, ids=version_name)
def test_same_bytes(cls: type[Message], version: int) -> None:
    theirs = KNOWN[cls.__name__]
    options = {"header": False} if issubclass(cls, Record) else {}
    for seed in range(3):
        message = Sampler(Random(f"{cls.__name__} {version} {seed}")).message(cls, version)
        assert translated(message, theirs, version).encode(version=version, **options) == encode(
            message, version
        )


def test_what_an_older_version_is_sent_without() -> None:
    """A throttle time, a rack: left out for a peer that does not know them, where a group instance
    id is an error; by the message definitions of Kafka that they bring along.
    """
    compared = 0
    for name, cls in {cls.__name__: cls for cls, _ in PAIRS}.items():
        definition = KNOWN[name]._json
        commons = {each["name"]: each["fields"] for each in definition.get("commonStructs", ())}
        compared += check_ignorable(cls, definition["fields"], commons, name)
    assert compared > 800


def check_ignorable(
    ours: type[Struct], theirs: list[dict[str, Any]], commons: dict[str, Any], label: str
) -> int:
    """How many fields were compared."""
    named = {snake_case(each["name"]): each for each in theirs}
    count = 0
    for field in ours.FIELDS:
        other = named.get(field.name)
        if other is None:  # of a version that they do not know
            continue
        assert field.ignorable is (other.get("ignorable", False) is True), f"{label}.{field.name}"
        count += 1
        inner = other.get("fields") or commons.get(other["type"].removeprefix("[]"))
        if inner:
            count += check_ignorable(field.element, inner, commons, f"{label}.{field.name}")
    return count


def test_nearly_all_of_theirs_are_ours() -> None:
    """Headers, which have their own module, are compared elsewhere; the rest belongs to APIs
    that are not served.
    """
    ours = {cls.__name__ for cls, _ in PAIRS}
    served = {route.name + kind for route in ROUTES for kind in ("Request", "Response")}
    assert served & set(KNOWN) <= ours
    others = set(KNOWN) - ours - served
    assert {name for name in others if not name.endswith(("Request", "Response"))} == {
        "RequestHeader",
        "ResponseHeader",
    }
    assert len(PAIRS) > 400
