"""The parts that writers of source text share: lines with indentation, the `struct` formats in use,
sizes, literals.

Not here: what the lines say (reader_source.py, writer_source.py, init_source.py).
"""

from typing import Any

from twisted_broker.wire.fields import FRESH, Field
from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.wire.structs import Struct

FIXED = {
    "boolean": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
NUMBER_ARRAYS = ("int8", "int16", "int32", "int64")


class SourceText:
    """Lines of a function body, with the classes, names and `struct` formats that its module
    must have ahead of it.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.names = 0
        self.classes: dict[str, str] = {}
        self.primitives: set[str] = set()
        self.formats: dict[str, int] = {}

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, prefix: str) -> str:
        """A local variable of a new name."""
        self.names += 1
        return f"{prefix}{self.names}"

    def primitive(self, name: str) -> str:
        self.primitives.add(name)
        return name

    def class_name(self, cls: type) -> str:
        self.classes[cls.__name__] = cls.__module__
        return cls.__name__

    def made(self, cls: type) -> str:
        """The expression for an object without values."""
        name, maker = self.class_name(cls), getattr(cls, "__new__")  # noqa: B009  of any type
        return f"new({name})" if maker is object.__new__ else f"{name}.__new__({name})"

    def format(self, letters: str, method: str) -> str:
        """The module's name for a compiled struct's method: S3_unpack."""
        return f"S{self.formats.setdefault(letters, len(self.formats))}_{method}"

    def module(self, signature: str, method: str) -> str:
        """The whole text: imports, formats, one function."""
        head = ["from struct import Struct"]
        by_module: dict[str, list[str]] = {}
        for name, module in self.classes.items():
            by_module.setdefault(module, []).append(name)
        head += [
            f"from {module} import {', '.join(sorted(names))}"
            for module, names in sorted(by_module.items())
        ]
        if "Generator[" in signature:
            head.insert(0, "from collections.abc import Generator")
        head.append("from typing import Any")
        head.append(
            "from twisted_broker.wire.primitives import "
            f"{', '.join(sorted(self.primitives | {'Buffer'}))}"
        )
        attribute = "unpack_from" if method == "unpack" else method
        head += [
            f'S{index}_{method} = Struct(">{letters}").{attribute}'
            for letters, index in self.formats.items()
        ]
        return "\n".join([*head, "", "", signature, *self.lines, ""])


def literal(value: Any) -> str:
    """A default as it stands in source text; a fresh list or struct is not one."""
    assert value is not FRESH
    return "NULL_UUID" if value == NULL_UUID else repr(value)


def differs(field: Field, expression: str, source: SourceText) -> str:
    """An expression that is true when `expression` holds something else than the field's
    default.
    """
    if field.default is None:
        return f"{expression} is not None"
    if field.kind == "structure":
        null = [f"{expression} is None"] if field.nullable else []
        return " or ".join(
            null
            + [
                differs(inner, f"{expression}.{inner.name}", source)
                for inner in field.element.FIELDS
            ]
        )
    if field.kind == "boolean":
        return f"not {expression}" if field.default else expression
    if field.kind == "array" or field.default in ("", b"", 0):
        return f"{expression} is None or {expression}" if field.nullable else expression
    if field.default == NULL_UUID:
        source.primitive("NULL_UUID")
    return f"{expression} != {literal(field.default)}"


def fields_of(
    cls: type[Struct], version: int, flexible: bool
) -> tuple[list[Field], list[Field], list[Field]]:
    """(plain, tagged in order of their tags, missing) at a version."""
    plain: list[Field] = []
    tagged: list[Field] = []
    missing: list[Field] = []
    for field in cls.FIELDS:
        if not field.is_in(version):
            missing.append(field)
        elif field.tag is not None:
            assert flexible, field.name
            tagged.append(field)
        else:
            plain.append(field)
    tagged.sort(key=lambda field: field.tag or 0)
    return plain, tagged, missing


def struct_size(cls: type[Struct], version: int, flexible: bool) -> int:
    """The fewest bytes the struct can take."""
    plain, _, _ = fields_of(cls, version, flexible)
    return sum(field_size(field, version, flexible) for field in plain) + flexible


def field_size(field: Field, version: int, flexible: bool) -> int:
    if field.kind == "structure":
        return 1 if field.is_nullable(version) else struct_size(field.element, version, flexible)
    return kind_size(field.kind, flexible)


def kind_size(kind: str, flexible: bool) -> int:
    """The fewest bytes of a primitive: those of a fixed kind, the length of an empty one of any
    other.
    """
    if kind in FIXED:
        return FIXED[kind][1]
    if flexible:
        return 1
    return 2 if kind == "string" else 4


def element_size(field: Field, version: int, flexible: bool) -> int:
    """Of an array's element."""
    return (
        kind_size(field.element, flexible)
        if isinstance(field.element, str)
        else struct_size(field.element, version, flexible)
    )
