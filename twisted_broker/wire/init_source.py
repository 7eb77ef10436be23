"""The `__init__` of a description as source text: keyword arguments with Kafka's defaults.

1. A list or struct left out is a new one for each message, never shared.
"""

from collections.abc import Callable
from typing import Any

from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.wire.schema import FRESH, Field, Struct
from twisted_broker.wire.source import literal


def init_source(cls: type[Struct]) -> str:
    arguments = "".join(f", {field.name}={'FRESH' if field.default is FRESH else literal(field.default)}" for field in cls.FIELDS)
    lines = [f"def __init__(self{', *' if arguments else ''}{arguments}):"]
    lines += [f"    self.{field.name} = {_value(field)}" for field in cls.FIELDS]
    return "\n".join([*lines, "    pass" if not cls.FIELDS else ""])


def _value(field: Field) -> str:
    if field.default is not FRESH:
        return field.name
    fresh = "[]" if field.kind == "array" else f"{field.element.__name__}()"
    return f"{fresh} if {field.name} is FRESH else {field.name}"


def compile_init(cls: type[Struct]) -> Callable[..., None]:
    namespace: dict[str, Any] = {"FRESH": FRESH, "NULL_UUID": NULL_UUID}
    for field in cls.FIELDS:
        if field.kind == "structure":
            namespace[field.element.__name__] = field.element
    exec(compile(init_source(cls), f"<init of {cls.__name__}>", "exec"), namespace)
    compiled: Callable[..., None] = namespace["__init__"]
    return compiled
