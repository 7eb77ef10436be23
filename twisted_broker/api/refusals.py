"""The answer of an API when the whole request is refused: its error in the place where that API has
one.

1. Where the version's answer has an error of its own, it carries the code, and the rest is empty.
2. Else the answer mirrors the request, and everything named in it carries the code. Names and
   numbers are matched by name, then by order; a name that is null where the answer allows none
   becomes empty.
3. Offsets and epochs that are not known are -1.

Source: the `getErrorResponse` of Kafka's request classes. Not here: refusals of single topics or
partitions (each API's own).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from twisted_broker.wire.schema import Field, Struct, run_whole

_UNKNOWN_OFFSETS = frozenset(
    {
        "base_offset",
        "committed_offset",
        "end_offset",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "low_watermark",
        "offset",
        "producer_epoch",
        "timestamp",
    }
)
_KINDS: dict[str, type] = {"string": str, "int32": int, "int8": int, "uuid": bytes}


def refusal(
    request: Any, response_class: type[Any], version: int, code: int, message: str | None = None
) -> Any:
    """An answer of `response_class` that refuses all of `request`; `message` is given where
    there is a place for it.
    """
    return run_whole(refusal_in_steps(request, response_class, version, code, message))


def refusal_in_steps(
    request: Any, response_class: type[Any], version: int, code: int, message: str | None = None
) -> Generator[None, None, Any]:
    """As `refusal`, pausing after every element."""
    response = response_class()
    if not refuse_struct(response, version, code, message):
        yield from _mirror(request, response, version, code, message)
    return response


def _fields(struct: Any, version: int) -> list[Field]:
    return [field for field in struct.FIELDS if field.is_in(version)]


def refuse_struct(struct: Any, version: int, code: int, message: str | None) -> bool:
    """Sets the struct's own error; False where it has none."""
    names = {field.name for field in _fields(struct, version)}
    for field in _fields(struct, version):
        if field.name in _UNKNOWN_OFFSETS:
            setattr(struct, field.name, -1)
    if "error_code" not in names:
        return False
    struct.error_code = code
    if "error_message" in names:
        struct.error_message = message
    return True


def _carries_error(element: Any, version: int) -> bool:
    fields = _fields(element, version)
    nested = [field.element for field in fields if _is_structs(field)]
    return any(field.name == "error_code" for field in fields) or any(
        _carries_error(each, version) for each in nested
    )


def _is_structs(field: Field) -> bool:
    return field.kind == "array" and isinstance(field.element, type)


def _mirror(
    request: Any, response: Any, version: int, code: int, message: str | None
) -> Generator[None, None, None]:
    """Fills the first list of `response` that carries errors with one element for each of the
    request's first list.
    """
    requested = next(
        (
            field
            for field in _fields(request, version)
            if field.kind == "array" and getattr(request, field.name)
        ),
        None,
    )
    for field in _fields(response, version):
        if requested is not None and _is_structs(field) and _carries_error(field.element, version):
            answers: list[Any] = []
            for item in getattr(request, requested.name):
                answers.append((yield from _answer(item, field.element, version, code, message)))
                yield
            setattr(response, field.name, answers)
            return


def _answer(
    item: Any, element: Any, version: int, code: int, message: str | None
) -> Generator[None, None, Any]:
    made = element()
    _copy_names(item, made, version)
    if isinstance(item, Struct):
        _copy_parts(item, made, version)
    if not refuse_struct(made, version, code, message) and isinstance(item, Struct):
        yield from _mirror(item, made, version, code, message)
    return made


def _copy_parts(item: Struct, made: Any, version: int) -> None:
    """Copies what identifies an element by several parts of one kind: the entity of a quota."""
    sources = {field.name: field for field in _fields(item, version) if _is_structs(field)}
    for field in _fields(made, version):
        source = sources.get(field.name)
        if source is not None and _is_structs(field) and source.element is field.element:
            setattr(made, field.name, getattr(item, field.name))


def _identifies(field: Field) -> bool:
    return field.kind in _KINDS or field.name == "producer_id"


def _copy_names(item: Any, made: Any, version: int) -> None:
    """Copies what identifies an element: fields of equal names, else the first of the same kind."""
    targets = [
        field
        for field in _fields(made, version)
        if _identifies(field) and field.name not in ("error_message",)
    ]
    if not isinstance(item, Struct):
        for field in targets:
            if isinstance(item, _KINDS[field.kind]):
                setattr(made, field.name, item)
                return
        return
    sources = {field.name: field for field in _fields(item, version) if _identifies(field)}
    copied = {field.name for field in targets if field.name in sources}
    for field in targets:
        if field.name in copied:
            value = getattr(item, field.name)
            setattr(
                made, field.name, "" if value is None and not field.is_nullable(version) else value
            )
    kinds = {sources[name].kind for name in copied}
    for source in sources.values():
        if source.kind in kinds:
            continue
        for target in targets:
            if target.kind == source.kind and target.name not in copied:
                setattr(made, target.name, getattr(item, source.name))
                kinds.add(source.kind)
                break
