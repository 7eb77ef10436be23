"""The `__init__` of a description as source text: keyword arguments with Kafka's defaults.

1. The default of a list or struct is a new one for each message, never shared.

Source: Kafka's message JSON (defaults). Not here: reading (`reader_source`), writing
(`writer_source`).
"""

from collections.abc import Callable
from typing import Any

from twisted_broker.wire.fields import FRESH, Field
from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.wire.source import literal
from twisted_broker.wire.structs import Struct


def init_source(cls: type[Struct]) -> str:
    """The text of `__init__`: every field a keyword; what is created for each object (lists,
    structs) is FRESH until then.
    """
    arguments = "".join(
        f", {field.name}={'FRESH' if field.default is FRESH else literal(field.default)}"
        for field in cls.FIELDS
    )
    lines = [f"def __init__(self{', *' if arguments else ''}{arguments}):"]
    for field in cls.FIELDS:
        if field.default is FRESH:
            lines.append(f"    if {field.name} is FRESH:")
            lines += [f"        {line}" for line in _fresh(field, field.name)]
    lines += [f"    self.{field.name} = {field.name}" for field in cls.FIELDS]
    return "\n".join([*lines, "    pass" if not cls.FIELDS else ""])


def _fresh(field: Field, target: str) -> list[str]:
    """Lines that make a default; a struct of defaults is filled in place, a call for each would
    cost more than all the rest.
    """
    if field.default is not FRESH:
        return [f"{target} = {literal(field.default)}"]
    if field.kind == "array":
        return [f"{target} = []"]
    lines = [f"{target} = new({field.element.__name__})"]
    for inner in field.element.FIELDS:
        lines += _fresh(inner, f"{target}.{inner.name}")
    return lines


def compile_init(cls: type[Struct]) -> Callable[..., None]:
    """The `__init__` of a struct or message, ready to be set on its class."""
    namespace: dict[str, Any] = {"FRESH": FRESH, "NULL_UUID": NULL_UUID, "new": object.__new__}
    _add_classes(cls, namespace)
    exec(compile(init_source(cls), f"<init of {cls.__name__}>", "exec"), namespace)
    compiled: Callable[..., None] = namespace["__init__"]
    return compiled


def _add_classes(cls: type[Struct], namespace: dict[str, Any]) -> None:
    for field in cls.FIELDS:
        if field.kind == "structure":
            namespace[field.element.__name__] = field.element
            _add_classes(field.element, namespace)
