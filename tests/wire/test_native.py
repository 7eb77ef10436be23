"""The native classes and codecs of every family (`wire/native_source.py`) beside the descriptions
and their generated codecs: same bytes, same values, nothing taken that those refuse.

In a checkout their text is run by the interpreter, as it stands. Where the package is compiled, the
compiled classes are beside the descriptions they were written out of.
"""

import importlib
import pkgutil
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loops import rebound
from tests.wire.sampling import Sampler
from tests.wire.test_golden_messages import LINES
from twisted_broker.wire import messages
from twisted_broker.wire.messages.list_offsets import ListOffsetsRequest
from twisted_broker.wire.native_source import borrowed_structs, native_source
from twisted_broker.wire.primitives import FEW_ELEMENTS
from twisted_broker.wire.schema import (
    Message,
    Request,
    Response,
    Struct,
    generated_reader,
    generated_writer,
)

pytest.importorskip("librt.strings")
pytest.importorskip("mypy_extensions")
native = importlib.import_module("twisted_broker.wire.native")

COMPILED = not native.__file__.endswith(".py")


def loaded(name: str, text: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module  # the generated codecs import from it
    exec(compile(text, name, "exec"), vars(module))  # noqa: S102
    return module


FAMILIES = [
    each.name
    for each in pkgutil.iter_modules(messages.__path__)
    if (
        not borrowed_structs(f"{messages.__name__}.{each.name}")
        if not COMPILED
        else not importlib.import_module(f"{messages.__name__}.{each.name}").__file__.endswith(
            ".py"
        )
    )
]


@cache
def native_family(family: str) -> ModuleType:
    """Its native classes, compiled or interpreted."""
    name = f"{messages.__name__}.{family}"
    if COMPILED:
        return importlib.import_module(name)
    text = native_source(name)
    assert not list(rebound(text))
    return loaded(f"native_{family}", text)


@cache
def described_family(family: str) -> ModuleType:
    if not COMPILED:
        return importlib.import_module(f"{messages.__name__}.{family}")
    return loaded(f"described_{family}", (Path(messages.__path__[0]) / f"{family}.py").read_text())


@cache
def pairs(family: str) -> list[tuple[type[Message], Any]]:
    """Each message of the family as described, and as a native class."""
    described = described_family(family)
    return [
        (cls, getattr(native_family(family), name))
        for name, cls in vars(described).items()
        if isinstance(cls, type)
        and issubclass(cls, Message)
        and cls.__module__ == described.__name__
    ]


def versions(cls: type[Message]) -> range:
    return range(cls.versions.min, cls.versions.max + 1)


def made_native(value: Any, module: ModuleType) -> Any:
    """The same values in native classes."""
    if isinstance(value, list):
        return [made_native(each, module) for each in value]
    if isinstance(value, Struct):
        values = {each.name: getattr(value, each.name) for each in value.FIELDS}
        cls = getattr(module, type(value).__name__)
        return cls(**{name: made_native(each, module) for name, each in values.items()})
    return value


def native_bytes(cls: Any, message: Any, version: int) -> bytes:
    """By the native codec alone."""
    parts: list[Any] = []
    out = native.MessageBytes(parts)
    native.CODECS[cls].write(message, out, version)
    out.flush()
    return b"".join(parts)


def native_read(cls: Any, data: bytes, version: int) -> tuple[Any, int]:
    left = FEW_ELEMENTS if issubclass(cls, native.NativeRequest) else 1 << 62
    frame = native.FrameBytes(data, 0, left)
    return native.CODECS[cls].read(frame, version), frame.at


def written(cls: type[Message], message: Any, version: int) -> bytes:
    parts: list[Any] = []
    generated_writer(cls, version)(message, parts)
    return b"".join(parts)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_same_bytes_and_values_in_every_version(family: str, seed: int) -> None:
    random = Random(seed)
    for cls, twin in pairs(family):
        for version in versions(cls):
            message = Sampler(random).message(cls, version)
            same = made_native(message, native_family(family))
            raw = written(cls, message, version)
            assert native_bytes(twin, same, version) == raw
            again, end = native_read(twin, raw, version)
            assert (repr(again), end) == (repr(message), len(raw))
            assert again == same


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_nothing_is_read_that_the_generated_reader_refuses(family: str, seed: int) -> None:
    random = Random(seed)
    for cls, twin in pairs(family):
        version = random.choice(versions(cls))
        raw = bytearray(written(cls, Sampler(random).message(cls, version), version) + b"\0\0")
        for _ in range(random.randrange(1, 4)):
            raw[random.randrange(len(raw))] = random.choice((0, 1, 2, 3, 127, 128, 254, 255))
        changed = bytes(raw[: random.choice((len(raw), random.randrange(len(raw))))])
        try:
            found, end = native_read(twin, changed, version)
        except Exception:  # noqa: S112  refused: the generated reader decides
            continue
        expected = generated_reader(cls, version)(changed, 0, len(changed))
        assert (repr(found), end) == (repr(expected[0]), expected[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_written_that_the_generated_writer_refuses(family: str) -> None:
    """Values that a version has no place for, of any size, null where null may not be."""
    random = Random(family)
    for cls, twin in pairs(family):
        for version in versions(cls):
            message = Sampler(random).message(cls, random.choice(versions(cls)))
            for field in cls.FIELDS:
                wrong = deepcopy(message)
                value = random.choice((None, 1 << 70, -(1 << 63) - 1, 40000, "\ud800", bytes(3)))
                setattr(wrong, field.name, value)
                try:
                    raw = native_bytes(twin, made_native(wrong, native_family(family)), version)
                except Exception:  # noqa: S112  refused: the generated writer decides
                    continue
                assert raw == written(cls, wrong, version)


@pytest.mark.parametrize("line", LINES, ids=lambda line: "-".join(line.split(" ")[:3])[:60])
def test_kafkas_own_bytes_are_read_and_written_natively(line: str) -> None:
    name, version, raw, _ = line.split(" ", 3)
    data = bytes.fromhex(raw.strip("-"))
    found = [twin for each in FAMILIES for cls, twin in pairs(each) if cls.__name__ == name]
    if not found:
        pytest.skip("this family is not compiled")
    (twin,) = found
    message, end = native_read(twin, data, int(version))
    assert end == len(data)
    assert native_bytes(twin, message, int(version)) == data


def test_a_native_class_is_described_as_its_twin() -> None:
    for family in FAMILIES:
        for cls, twin in pairs(family):
            assert (twin.versions, twin.flexible) == (cls.versions, cls.flexible)
            assert twin.allows_trailing_bytes == cls.allows_trailing_bytes
            assert repr(twin()) == repr(cls())
            assert isinstance(twin(), Struct) and issubclass(twin, Message)
            assert issubclass(twin, Request) == issubclass(cls, Request)
            assert issubclass(twin, Response) == issubclass(cls, Response)
            for field, same in zip(cls.FIELDS, twin.FIELDS, strict=True):
                for part in ("name", "kind", "versions", "nullable", "tag", "ignorable"):
                    assert getattr(field, part) == getattr(same, part)
            with pytest.raises(TypeError, match="unhashable"):
                hash(twin())


def test_a_bound_codec_refuses_in_the_words_of_the_generated_one() -> None:
    module = native_family("list_offsets")
    codec = native.bound(module.ListOffsetsRequest, 7)
    message = module.ListOffsetsRequest(replica_id=-1)
    raw = written(ListOffsetsRequest, ListOffsetsRequest(replica_id=-1), 7)
    parts: list[Any] = [b"before"]
    codec.write(message, parts)
    assert parts == [b"before", raw]
    assert codec.read(raw, 0, len(raw)) == (message, len(raw))
    assert codec.read(memoryview(raw), 0, len(raw)) == (message, len(raw))
    message.replica_id = 1 << 40
    with pytest.raises(Exception, match="format requires") as refused:
        codec.write(message, parts)
    with pytest.raises(type(refused.value), match="format requires"):
        written(ListOffsetsRequest, ListOffsetsRequest(replica_id=1 << 40), 7)
    assert len(parts) == 2


def test_a_family_that_borrows_structures_has_no_native_form() -> None:
    with pytest.raises(ValueError, match="ClientTag is of another family"):
        native_source(f"{messages.__name__}.streams_groups")
