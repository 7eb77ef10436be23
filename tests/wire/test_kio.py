"""kio reads what we wrote and writes the same bytes again, with our fields' names and values, for
every message and version that it knows.

Only bytes that we made go in: its native reader can end the process on others.
"""

import dataclasses
import datetime
import io
import re
from collections.abc import Iterator
from pkgutil import resolve_name
from random import Random
from typing import Any, get_args, get_type_hints
from uuid import UUID

import pytest
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from tests.wire.sampling import Sampler, all_versions, snake_case, version_name
from twisted_broker.wire.schema import Message, Struct, encode

TYPES = {"Request": EntityType.request, "Response": EntityType.response}


def entity_path(cls: type[Message], version: int) -> str | None:
    match = re.fullmatch(r"(.*?)(Request|Response)?", cls.__name__)
    assert match is not None
    kinds: Any = schema_name_map.get(snake_case(match[1]), {}).get(version, {})
    path: str | None = kinds.get(TYPES.get(match[2] or "", EntityType.data))
    return path


PAIRS = [(cls, version) for cls, version in all_versions() if entity_path(cls, version)]


@pytest.mark.parametrize(("cls", "version"), PAIRS, ids=version_name)
def test_same_bytes(cls: type[Message], version: int) -> None:
    path = entity_path(cls, version)
    assert path is not None
    entity = resolve_name(path)
    for seed in range(2):
        message = Sampler(Random(f"{cls.__name__} {version} {seed}"), tame=True).message(
            cls, version
        )
        encoded = encode(message, version)
        theirs, _ = entity_reader(entity)(encoded, 0)
        again = io.BytesIO()
        entity_writer(entity)(again, theirs)
        assert again.getvalue() == encoded
        check_values(message, theirs, version)


def check_values(message: Struct, theirs: Any, version: int) -> None:
    fields = [field for field in message.FIELDS if field.is_in(version)]
    names = [field.name for field in dataclasses.fields(theirs)]
    assert len(names) == len(fields)
    for field, name in zip(fields, names, strict=True):
        ours, other = getattr(message, field.name), getattr(theirs, name)
        # They turn milliseconds into spans and moments, and drop the unit from the name.
        if not isinstance(other, datetime.timedelta | datetime.datetime | None):
            assert field.name == name.rstrip("_")
            check_value(ours, other, version)


def check_value(ours: Any, theirs: Any, version: int) -> None:
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            check_value(one, other, version)
    elif isinstance(ours, Struct):
        check_values(ours, theirs, version)
    else:
        assert ours == (theirs.bytes if isinstance(theirs, UUID) else theirs)


@pytest.mark.parametrize(("cls", "version"), PAIRS, ids=version_name)
def test_same_defaults(cls: type[Message], version: int) -> None:
    """What a field is that a peer's version does not have, or that a request leaves out."""
    path = entity_path(cls, version)
    assert path is not None
    check_defaults(cls, resolve_name(path), version)


def check_defaults(ours: type[Struct], theirs: Any, version: int) -> None:
    hints = get_type_hints(theirs)
    fields = [field for field in ours.FIELDS if field.is_in(version)]
    for field, other in zip(fields, dataclasses.fields(theirs), strict=True):
        if isinstance(field.element, type) and issubclass(field.element, Struct):
            nested = next(filter(dataclasses.is_dataclass, inner_types(hints[other.name])))
            check_defaults(field.element, nested, version)
        elif isinstance(other.default, datetime.timedelta):
            assert field.default == other.default // datetime.timedelta(milliseconds=1), field.name
        elif isinstance(other.default, int | str):
            assert field.default == other.default, field.name


def inner_types(hint: Any) -> Iterator[Any]:
    yield hint
    for each in get_args(hint):
        yield from inner_types(each)


def test_kio_knows_many() -> None:
    """The comparison above is not empty."""
    assert len(PAIRS) > 400
