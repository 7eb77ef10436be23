"""Writes the source text of a writer: `write(o, parts) -> None` appends one message at one version
to a list of byte strings.

1. Neighbouring values of fixed width, with a length or count that follows them, are one `pack`; the
   byte that says "no tagged fields" is its padding.
2. Nested structs and arrays are written out in place.
3. `n` is a length or count as it goes out: compact ones carry their plus one, 0 is null. A varint
   above 127 takes a second way.
4. Tagged fields go out when they differ from their default, in the order of their tags.
"""

from twisted_broker.wire.fields import Field
from twisted_broker.wire.primitives import BYTES
from twisted_broker.wire.source import FIXED, NUMBER_ARRAYS, SourceText, differs, fields_of
from twisted_broker.wire.structs import Message, Struct


def writer_source(cls: type[Message], version: int, in_slices: bool = False) -> str:
    """A module with `write(o, parts)` for one version: appends the message's bytes, and opaque
    records as they are.

    `in_slices`: a generator, which yields after every FEW_ELEMENTS elements of arrays.
    """
    writer = _WriterText(version, cls.flexible.holds(version))
    writer.in_slices = in_slices
    name = writer.text.class_name(cls)
    if in_slices:
        writer.text.line("k = 0")
        writer.text.line("if k < 0:")
        writer.text.line("    yield")  # a generator also where the message has no array
    writer.struct(cls, "o", cls.__name__)
    writer.flush()
    if not writer.text.lines:
        writer.text.line("pass")
    result = "Generator[None, None, None]" if in_slices else "None"
    return writer.text.module(f"def write(o: {name}, parts: list[Any]) -> {result}:", "pack")


class _WriterText:
    def __init__(self, version: int, flexible: bool) -> None:
        self.text = SourceText()
        self.version = version
        self.flexible = flexible
        self.in_slices = False
        self.parts = "parts"
        self.letters = ""
        self.values: list[str] = []

    # Runs of fixed width

    def fixed(self, letter: str, value: str) -> None:
        self.letters += letter
        self.values = [*self.values, value]

    def packed(self, extra_letter: str = "", extra_value: str = "") -> str:
        """The run as an expression, with one value more behind it."""
        letters = self.letters + extra_letter
        values = [*self.values, extra_value] if extra_value else self.values
        if not letters.strip("x"):
            return repr(bytes(len(letters)))
        return f"{self.text.format(letters, 'pack')}({', '.join(values)})"

    def flush(self) -> None:
        if self.letters:
            self.text.line(f"{self.parts}.append({self.packed()})")
        self.letters, self.values = "", []

    def length(self, letter: str) -> None:
        """Ends the run with `n`."""
        if not self.flexible:
            self.fixed(letter, "n")
            self.flush()
            return
        short = self.packed("B", "n") if self.letters else f"{self.text.primitive('BYTES')}[n]"
        long = f"{self.packed()} + uvarint(n)" if self.letters else "uvarint(n)"
        self.text.primitive("uvarint")
        self.text.line(f"{self.parts}.append({short} if n < 128 else {long})")
        self.letters, self.values = "", []

    # Structs

    def struct(self, cls: type[Struct], value: str, label: str) -> None:
        plain, tagged, missing = fields_of(cls, self.version, self.flexible)
        for field in missing:
            if not field.ignorable:
                self.text.line(f"if {differs(field, f'{value}.{field.name}', self.text)}:")
                self.text.line(
                    f'    raise ValueError("{label} v{self.version} cannot carry {field.name}")'
                )
        for field in plain:
            self.field(field, f"{value}.{field.name}", f"{label}.{field.name}")
        if tagged:
            self.tagged_fields(tagged, value, label)
        elif self.flexible:
            self.letters += "x"

    def tagged_fields(self, tagged: list[Field], value: str, label: str) -> None:
        conditions = [differs(field, f"{value}.{field.name}", self.text) for field in tagged]
        before = self.letters, self.values
        self.text.line(f"if {' or '.join(conditions)}:")
        self.text.depth += 1
        self.flush()
        parts, section, count = self.parts, self.text.name("section"), self.text.name("count")
        self.text.line(f"{section}: list[Any] = []")
        self.text.line(f"{count} = 0")
        for field, condition in zip(tagged, conditions, strict=True):
            self.parts = self.text.name("content")
            self.text.line(f"if {condition}:")
            self.text.depth += 1
            self.text.line(f"{count} += 1")
            self.text.line(f"{self.parts}: list[Any] = []")
            self.field(field, f"{value}.{field.name}", f"{label}.{field.name}")
            self.flush()
            self.text.line(
                f"{section}.append({bytes((field.tag or 0,))!r} + "
                f"{self.text.primitive('uvarint')}(sum(map(len, {self.parts}))))"
            )
            self.text.line(f"{section} += {self.parts}")
            self.text.depth -= 1
        self.parts = parts
        self.text.line(f"{parts}.append({self.text.primitive('uvarint')}({count}))")
        self.text.line(f"{parts} += {section}")
        self.text.depth -= 1
        self.text.line("else:")
        self.letters, self.values = before
        self.letters += "x"
        self.text.depth += 1
        self.flush()
        self.text.depth -= 1

    # Fields

    def field(self, field: Field, value: str, label: str) -> None:
        if field.kind in FIXED:
            self.fixed(FIXED[field.kind][0], value)
        elif field.kind == "structure":
            self.structure(field, value, label)
        elif field.kind == "array":
            self.array(field, value, label)
        else:
            self.bytes_like(field.kind, field.is_nullable(self.version), value)

    def structure(self, field: Field, value: str, label: str) -> None:
        if not field.is_nullable(self.version):
            name = self.text.name("o")
            self.text.line(f"{name} = {value}")
            self.struct(field.element, name, label)
            return
        self.flush()
        name = self.text.name("o")
        self.text.line(f"{name} = {value}")
        self.text.line(f"if {name} is None:")
        self.text.line(f"    {self.parts}.append({BYTES[255 if field.tag is None else 0]!r})")
        self.text.line("else:")
        self.text.depth += 1
        self.fixed("b", "1")
        self.struct(field.element, name, label)
        self.flush()
        self.text.depth -= 1

    def bytes_like(self, kind: str, nullable: bool, value: str) -> None:
        name = self.text.name("s")
        self.text.line(f"{name} = {value}")
        before = self.letters, self.values
        if nullable:
            self.text.line(f"if {name} is None:")
            self.text.depth += 1
            self.null("h" if kind == "string" else "i")
            self.text.depth -= 1
            self.text.line("else:")
            self.letters, self.values = before
            self.text.depth += 1
        self.content(kind, name)
        self.text.depth -= nullable

    def null(self, letter: str) -> None:
        """Ends the run with a null of classic or compact form."""
        if self.flexible:
            self.letters += "x"
        else:
            self.fixed(letter, "-1")
        self.flush()

    def content(self, kind: str, name: str) -> None:
        plus_one = " + 1" if self.flexible else ""
        if kind == "record_bytes":
            self.text.line(f"is_list = type({name}) is list or type({name}) is tuple")
            self.text.line(f"n = (sum(map(len, {name})) if is_list else len({name})){plus_one}")
            self.length("i")
            self.text.line(
                f"{self.parts}.extend({name}) if is_list else {self.parts}.append({name})"
            )
            return
        if kind == "string":
            self.text.line(f"b{name} = {name}.encode()")
            name = "b" + name
        self.text.line(f"n = len({name}){plus_one}")
        self.length("h" if kind == "string" else "i")
        self.text.line(f"{self.parts}.append({name})")

    def array(self, field: Field, value: str, label: str) -> None:
        items = self.text.name("v")
        self.text.line(f"{items} = {value}")
        nullable = field.is_nullable(self.version)
        if nullable:
            before = self.letters, self.values
            self.text.line(f"if {items} is None:")
            self.text.depth += 1
            self.null("i")
            self.text.depth -= 1
            self.text.line("else:")
            self.letters, self.values = before
            self.text.depth += 1
        self.text.line(f"n = len({items}){' + 1' if self.flexible else ''}")
        self.length("i")
        if field.element in NUMBER_ARRAYS:
            short, long = (
                self.text.primitive(f"{field.element.upper()}_WRITERS"),
                self.text.primitive("numbers"),
            )
            self.text.line(
                f"{self.parts}.append({short}[len({items})](*{items}) if len({items}) < 17 "
                f'else {long}({items}, "{FIXED[field.element][0]}"))'
            )
        else:
            self.loop(field, items, label)
        self.text.depth -= nullable

    def loop(self, field: Field, items: str, label: str) -> None:
        item = self.text.name("e")
        self.text.line(f"for {item} in {items}:")
        self.text.depth += 1
        if not isinstance(field.element, str):
            self.struct(field.element, item, label)
            self.flush()
        elif field.element in FIXED:
            self.fixed(FIXED[field.element][0], item)
            self.flush()
        else:
            self.bytes_like(field.element, False, item)
        if self.in_slices:
            self.text.line("k += 1")
            self.text.line(f"if k == {self.text.primitive('FEW_ELEMENTS')}:")
            self.text.line("    k = 0")
            self.text.line("    yield")
        self.text.depth -= 1
