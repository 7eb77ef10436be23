"""Writes the source text of a family of messages as native classes: what a compiled broker has in
place of the descriptions (`messages/<family>.py`).

1. One class per struct, whose attributes have types; `read_<struct>` and `write_<struct>` serve
   all versions; `v` is the version, `c` whether it is flexible (compact lengths, tagged fields).
2. Whatever the text refuses, the generated codecs decide (`native.py` 1).
3. The text is for mypyc: no loop's bound is assigned in the loop.

Not here: the primitives (`native.py`), which families (`compiled/families.txt`), compiling
(`setup.py`).
"""

from importlib import import_module
from types import ModuleType

from twisted_broker.wire.fields import FRESH, NEWEST, Field, version_range
from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.wire.structs import Message, Record, Request, Response, Struct

_INTEGERS = ("int8", "int16", "uint16", "int32", "int64")
_TYPES = {
    **dict.fromkeys(_INTEGERS, "int"),
    "boolean": "bool",
    "float64": "float",
    "uuid": "bytes",
    "binary": "bytes",
    "string": "str",
}
_HEAD = '''"""{doc}

Written by `wire/native_source.py` out of the description of the same name.
"""

from typing import Any, ClassVar, Final

from mypy_extensions import i64

from twisted_broker.wire.native import (
    FRESH, NULL_UUID, Codec, Field, FrameBytes, MessageBytes, NativeMessage, NativeRecord,
    NativeRequest, NativeResponse, NativeStruct, Refused, described, fields,
)

_FRESH: Final = FRESH
_NULL_UUID: Final = NULL_UUID
'''


def native_source(module: str) -> str:
    """The module that stands in place of the descriptions in `module`."""
    found = import_module(module)
    if borrowed := borrowed_structs(module):
        raise ValueError(f"{module} has no native form: {borrowed[0]} is of another family")
    classes = [cls for cls in _structs(found) if cls.__module__ == module]
    text = _Text()
    for cls in classes:
        text.definition(cls)
        text.reader(cls)
        text.writer(cls)
        if issubclass(cls, Message):
            text.codec(cls)
    return _HEAD.format(doc=(found.__doc__ or "").strip()) + "\n".join(text.lines) + "\n"


def borrowed_structs(module: str) -> list[str]:
    """The structures in the messages of `module` that another family describes."""
    bases = (Struct, Message, Record, Request, Response)
    return [
        cls.__name__
        for cls in _structs(import_module(module))
        if cls.__module__ != module and cls not in bases
    ]


def _structs(module: ModuleType) -> list[type[Struct]]:
    return [
        cls for cls in vars(module).values() if isinstance(cls, type) and issubclass(cls, Struct)
    ]


def _holds(versions: str | None) -> str:
    """The condition on `v`; "" where it always holds, "False" where it never does."""
    low, high = version_range(versions)
    if high < low:
        return "False"
    lower, upper = f"v >= {low}" if low else "", f"v <= {high}" if high < NEWEST else ""
    return " and ".join(filter(None, (lower, upper)))


def _null(field: Field) -> str:
    """The condition under which it may be null, where the version has it."""
    condition = _holds(field.nullable)
    return "" if condition == _holds(field.versions) else condition


def _default(field: Field) -> str:
    if field.default is FRESH:
        return "_FRESH"
    return "_NULL_UUID" if field.default == NULL_UUID else repr(field.default)


def _element(field: Field) -> str:
    found = field.element
    return _TYPES[found] if isinstance(found, str) else str(found.__name__)


def _type(field: Field) -> str:
    if field.kind == "record_bytes":
        return "Any"
    if field.kind == "array":
        base = f"list[{_element(field)}]"
    else:
        base = _element(field) if field.kind == "structure" else _TYPES[field.kind]
    return f"{base} | None" if field.nullable or field.default is None else base


def _differs(field: Field, value: str) -> str:
    """Whether it holds something else than its default; as `source.differs`, typed."""
    if field.default is None:
        return f"{value} is not None"
    if field.kind == "structure":
        inner = [_differs(each, f"{value}.{each.name}") for each in field.element.FIELDS]
        return " or ".join(([f"{value} is None"] if field.nullable else []) + inner)
    if field.kind == "boolean":
        return f"not {value}" if field.default else value
    if field.kind == "array" or field.default in ("", b""):
        null = f"{value} is None or " if field.nullable else ""
        return f"{null}len({value}) != 0"
    return f"{value} != {_default(field)}"


class _Text:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.names = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def open(self, condition: str) -> bool:
        """Opens the branch of a condition that does not always hold."""
        if condition:
            self.line(f"if {condition}:")
            self.depth += 1
        return bool(condition)

    def definition(self, cls: type[Struct]) -> None:
        kinds = {Request: "Request", Response: "Response", Record: "Record", Message: "Message"}
        kind = next((name for base, name in kinds.items() if issubclass(cls, base)), "Struct")
        self.lines += ["", "", f"class {cls.__name__}(Native{kind}):"]
        described = "".join(f"\n        {each.name}={_field(each)}," for each in cls.FIELDS)
        self.lines.append(f"    FIELDS: ClassVar[Any] = fields({described}\n    )")
        self.lines += [f"    {field.name}: {_type(field)}" for field in cls.FIELDS]
        arguments = "".join(
            f", {each.name}: {'Any' if each.default is FRESH else _type(each)} = {_default(each)}"
            for each in cls.FIELDS
        )
        self.lines += [
            "",
            f"    def __init__(self{', *' if arguments else ''}{arguments}) -> None:",
        ]
        self.depth = 2
        for field in cls.FIELDS:
            fresh = "[]" if field.kind == "array" else f"{_element_name(field)}()"
            if field.default is FRESH:
                self.line(f"if {field.name} is _FRESH:")
                self.line(f"    self.{field.name} = {fresh}")
                self.line("else:")
                self.line(f"    self.{field.name} = {field.name}")
            else:
                self.line(f"self.{field.name} = {field.name}")
        if not cls.FIELDS:
            self.line("pass")
        self.depth = 0

    # Reading

    def reader(self, cls: type[Struct]) -> None:
        name = cls.__name__
        self.lines += ["", "", f"def read_{name}(f: FrameBytes, v: i64, c: bool) -> {name}:"]
        self.depth = 1
        plain = [field for field in cls.FIELDS if field.tag is None]
        tagged = sorted((each for each in cls.FIELDS if each.tag is not None), key=_tag)
        for field in cls.FIELDS:
            if field.tag is not None or _holds(field.versions):
                typed = "Any" if field.default is FRESH else _type(field)
                self.line(f"x_{field.name}: {typed} = {_default(field)}")
        for field in plain:
            condition = _holds(field.versions)
            opened = self.open(condition)
            self.read(field, declared=opened)
            self.depth -= opened
        self.open("c")
        if tagged:
            self.read_tagged(tagged)
        else:
            self.line("f.skip_tags()")
        self.depth = 1
        values = ", ".join(f"{field.name}=x_{field.name}" for field in cls.FIELDS)
        self.line(f"return {name}({values})")
        self.depth = 0

    def read_tagged(self, tagged: list[Field]) -> None:
        self.line("t = f.tags()")
        self.line("last: i64 = -1")
        self.line("while t > 0:")
        self.depth += 1
        self.line("t -= 1")
        self.line("tag = f.uvarint()")
        self.line("end = f.tag_end(tag, last)")
        self.line("last = tag")
        for index, field in enumerate(tagged):
            condition = _holds(field.versions)
            known = f" and {condition}" if condition else ""
            self.line(f"{'el' if index else ''}if tag == {field.tag}{known}:")
            self.depth += 1
            self.read(field, declared=True)
            self.depth -= 1
        self.line("else:")
        self.line("    f.at = end")
        self.line("if f.at != end:")
        self.line("    raise Refused")
        self.depth -= 1

    def read(self, field: Field, declared: bool) -> None:
        target = f"x_{field.name}" if declared else f"x_{field.name}: {_type(field)}"
        null = _null(field)
        if field.kind == "array":
            self.read_array(field, target, null)
            return
        if field.kind == "structure":
            value = f"read_{_element_name(field)}(f, v, c)"
            if null == "False":
                self.line(f"{target} = {value}")
                return
            absent = "== 0" if field.tag is not None else "< 0"
            value = f"None if f.int8() {absent} else {value}"
            if null:
                value = f"({value}) if {null} else read_{_element_name(field)}(f, v, c)"
            self.line(f"{target} = {value}")
            return
        if field.kind == "record_bytes":
            self.line(f"{target} = f.records(c, {null or 'True'})")
        elif field.kind not in ("string", "binary"):
            self.line(f"{target} = f.{field.kind}()")
        elif null == "False":
            self.line(f"{target} = f.{field.kind}(c)")
        elif null:
            value = f"f.nullable_{field.kind}(c) if {null} else f.{field.kind}(c)"
            self.line(f"{target} = {value}")
        else:
            self.line(f"{target} = f.nullable_{field.kind}(c)")

    def read_array(self, field: Field, target: str, null: str) -> None:
        count, items = self.name("n"), self.name("a")
        if null == "False":
            self.line(f"{count} = f.count(c)")
        elif null:
            self.line(f"{count} = f.nullable_count(c) if {null} else f.count(c)")
        else:
            self.line(f"{count} = f.nullable_count(c)")
        self.line(f"{items}: list[{_element(field)}] = []")
        self.line(f"while {count} > 0:")
        self.line(f"    {count} -= 1")
        self.line(f"    {items}.append({_read_element(field)})")
        # A count that was -1 stays so.
        value = items if null == "False" else f"None if {count} < 0 else {items}"
        self.line(f"{target} = {value}")

    # Writing

    def writer(self, cls: type[Struct]) -> None:
        name = cls.__name__
        self.lines += [
            "",
            "",
            f"def write_{name}(o: {name}, w: MessageBytes, v: i64, c: bool) -> None:",
        ]
        self.depth = 1
        plain = [field for field in cls.FIELDS if field.tag is None]
        tagged = sorted((each for each in cls.FIELDS if each.tag is not None), key=_tag)
        for field in cls.FIELDS:
            condition = _holds(field.versions)
            if condition and not field.ignorable:
                self.line(f"if not ({condition}) and ({_differs(field, f'o.{field.name}')}):")
                self.line("    raise Refused")
        for field in plain:
            opened = self.open(_holds(field.versions))
            self.write(field, "w")
            self.depth -= opened
        self.open("c")
        if tagged:
            self.write_tagged(tagged)
        else:
            self.line("w.uvarint(0)")
        self.depth = 0

    def write_tagged(self, tagged: list[Field]) -> None:
        self.line("t: i64 = 0")
        said = []
        for field in tagged:
            flag, condition = self.name("d"), _holds(field.versions)
            differs = _differs(field, f"o.{field.name}")
            self.line(f"{flag} = {f'{condition} and ({differs})' if condition else differs}")
            self.line(f"if {flag}:")
            self.line("    t += 1")
            said.append((flag, field))
        self.line("w.uvarint(t)")
        for flag, field in said:
            self.line(f"if {flag}:")
            self.depth += 1
            content = self.name("w")
            self.line(f"{content} = MessageBytes([])")
            self.write(field, content)
            self.line(f"w.tagged({field.tag}, {content})")
            self.depth -= 1

    def write(self, field: Field, out: str) -> None:
        value, null = f"o.{field.name}", _null(field)
        may_be_none = _type(field).endswith("| None")
        if field.kind == "record_bytes":
            self.line(f"{out}.records({value}, c, {null or 'True'})")
            return
        if field.kind in _INTEGERS or field.kind in ("boolean", "float64", "uuid"):
            self.line(f"{out}.{field.kind}({value})")
            return
        if not may_be_none:
            self.write_value(field, value, out)
            return
        name = self.name("s")
        self.line(f"{name} = {value}")
        self.line(f"if {name} is None:")
        self.depth += 1
        if null:
            self.line(f"if not ({null}):")
            self.line("    raise Refused")
        if field.kind == "structure":
            self.line(f"{out}.int8({0 if field.tag is not None else -1})")
        else:
            length = "short_length" if field.kind == "string" else "length"
            self.line(f"{out}.{length}(-1, c)")
        self.depth -= 1
        self.line("else:")
        self.depth += 1
        if field.kind == "structure":
            opened = self.open(null)
            if null != "False":
                self.line(f"{out}.int8(1)")
            else:
                self.line("pass")
            self.depth -= opened
        self.write_value(field, name, out)
        self.depth -= 1

    def write_value(self, field: Field, value: str, out: str) -> None:
        if field.kind == "structure":
            self.line(f"write_{_element_name(field)}({value}, {out}, v, c)")
        elif field.kind == "array":
            item = self.name("e")
            self.line(f"{out}.length(len({value}), c)")
            self.line(f"for {item} in {value}:")
            self.line(f"    {_write_element(field, item, out)}")
        else:
            self.line(f"{out}.{field.kind}({value}, c)")

    def codec(self, cls: type[Message]) -> None:
        name = cls.__name__
        number = cls.record_type if issubclass(cls, Record) else getattr(cls, "api_key", -1)
        flexible = _holds(_text(cls.flexible)) or "True"
        self.lines += [
            "",
            "",
            f"class _{name}Codec(Codec):",
            "    def read(self, frame: FrameBytes, version: i64) -> NativeMessage:",
            "        v = version",
            f"        return read_{name}(frame, v, {flexible})",
            "",
            "    def write(self, message: Any, out: MessageBytes, version: i64) -> None:",
            "        v = version",
            f"        o: {name} = message",
            f"        write_{name}(o, out, v, {flexible})",
            "",
            "",
            f'described({name}, "{_text(cls.versions)}", "{_text(cls.flexible)}", {number}, '
            f"_{name}Codec())",
        ]


def _text(versions: tuple[int, int]) -> str:
    low, high = versions
    if high < low:
        return "none"
    return f"{low}+" if high == NEWEST else f"{low}-{high}"


def _tag(field: Field) -> int:
    return field.tag or 0


def _element_name(field: Field) -> str:
    return str(getattr(field.element, "__name__", ""))


def _read_element(field: Field) -> str:
    if not isinstance(field.element, str):
        return f"read_{field.element.__name__}(f, v, c)"
    return f"f.{field.element}({'c' if field.element in ('string', 'binary') else ''})"


def _write_element(field: Field, item: str, out: str) -> str:
    if not isinstance(field.element, str):
        return f"write_{field.element.__name__}({item}, {out}, v, c)"
    return f"{out}.{field.element}({item}{', c' if field.element in ('string', 'binary') else ''})"


def _field(field: Field) -> str:
    element = field.element
    if element is not None:
        element = repr(element) if isinstance(element, str) else element.__name__
    return (
        f"Field({field.kind!r}, {field.versions!r}, {_default(field)}, {field.nullable!r}, "
        f"{field.tag!r}, {field.ignorable!r}, {element})"
    )
