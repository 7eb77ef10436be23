"""Writes the source text of a reader: `read(buf, p, end) -> (message, position after it)` for one
message at one version.

1. Neighbouring values of fixed width, with the length byte or bytes that follow them, are one
   `unpack`.
2. Nested structs and arrays are written out in place: one function, plain locals, slots stored
   directly.
3. `n` is a length or count just read, `t` the first byte of a section of tagged fields, `q` where a
   value ends. A length is compared with what is left before anything is sliced; a count is compared
   with remaining // smallest element before anything is made. A request may hold MAX_ELEMENTS in
   all (`left` of them still): three bytes of a frame can become a hundred of objects, and everybody
   may send requests. The usual reader stops at FEW_ELEMENTS (`ManyElements`); the one `in_slices`
   is a generator that yields after so many, and goes to the end.
4. Every slot is set: fields of other versions get their defaults.
5. What is not UTF-8 in a string is replaced (`primitives.py` 4).
"""

from twisted_broker.wire.fields import FRESH, Field
from twisted_broker.wire.primitives import NULL_UUID
from twisted_broker.wire.source import (
    FIXED,
    NUMBER_ARRAYS,
    SourceText,
    element_size,
    fields_of,
    literal,
)
from twisted_broker.wire.structs import Message, Request, Struct


def reader_source(cls: type[Message], version: int, in_slices: bool = False) -> str:
    """A module with `read(buf, p, end) -> (message, next position)` for one version.

    `read` raises WireError, IndexError or struct.error.
    """
    writer = _ReaderText(cls.__name__, version, cls.flexible.holds(version))
    writer.in_slices = in_slices
    name = writer.text.class_name(cls)
    writer.text.line(f"o = {writer.text.made(cls)}")
    if issubclass(cls, Request):
        writer.text.line(
            f"left = {writer.text.primitive('MAX_ELEMENTS' if in_slices else 'FEW_ELEMENTS')}"
        )
        writer.budget = " or left < 0"
    if in_slices:
        writer.text.line("k = 0")
    writer.struct(cls, "o")
    writer.flush()
    if in_slices:
        writer.text.line("if k < 0:")
        writer.text.line("    yield")  # a generator also where the message has no array
    writer.text.line("return o, p")
    if writer.uses_view:
        writer.text.lines.insert(0, "    view = memoryview(buf)")
    result = f"Generator[None, None, tuple[{name}, int]]" if in_slices else f"tuple[{name}, int]"
    text = writer.text.module(f"def read(buf: Buffer, p: int, end: int) -> {result}:", "unpack")
    return text.replace("\n\n\ndef ", "\nnew = object.__new__\n\n\ndef ", 1)


class _ReaderText:
    def __init__(self, message: str, version: int, flexible: bool) -> None:
        self.text = SourceText()
        self.message = message
        self.version = version
        self.flexible = flexible
        self.uses_view = self.in_slices = False
        self.budget = ""
        self.letters = ""
        self.targets: list[str] = []
        self.size = 0

    # Runs of fixed width

    def fixed(self, letter: str, size: int, target: str) -> None:
        self.letters += letter
        self.size += size
        self.targets.append(target)

    def flush(self) -> None:
        if not self.targets:
            return
        if self.letters == "B":
            self.text.line(f"{self.targets[0]} = buf[p]")
        else:
            comma = "," if len(self.targets) == 1 else ""
            self.text.line(
                f"{', '.join(self.targets)}{comma} = "
                f"{self.text.format(self.letters, 'unpack')}(buf, p)"
            )
        self.text.line(f"p += {self.size}")
        self.letters, self.targets, self.size = "", [], 0

    def length(self, letter: str, size: int) -> None:
        """Ends the run with a length or count, left in `n`: compact ones keep their plus one."""
        if not self.flexible:
            self.fixed(letter, size, "n")
            self.flush()
            return
        self.fixed("B", 1, "n")
        self.flush()
        self.text.line("if n > 127:")
        self.text.line(f"    n, p = {self.text.primitive('more_uvarint')}(buf, p, n)")

    # Structs

    def struct(self, cls: type[Struct], target: str) -> None:
        plain, tagged, missing = fields_of(cls, self.version, self.flexible)
        for field in [*missing, *tagged]:
            self.default(field, f"{target}.{field.name}")
        for field in plain:
            self.field(field, f"{target}.{field.name}", f"{cls.__name__}.{field.name}")
        if self.flexible:
            self.fixed("B", 1, "t")
            self.flush()
            self.text.line("if t:")
            self.text.depth += 1
            self.tagged_fields(tagged, target, cls)
            self.text.depth -= 1

    def default(self, field: Field, target: str) -> None:
        if field.default is not FRESH:
            if field.default == NULL_UUID:
                self.text.primitive("NULL_UUID")
            self.text.line(f"{target} = {literal(field.default)}")
        elif field.kind == "array":
            self.text.line(f"{target} = []")
        else:
            name = self.new_struct(field, target)
            for inner in field.element.FIELDS:
                self.default(inner, f"{name}.{inner.name}")

    def new_struct(self, field: Field, target: str) -> str:
        name = self.text.name("o")
        self.text.line(f"{target} = {name} = {self.text.made(field.element)}")
        return name

    def tagged_fields(self, tagged: list[Field], target: str, cls: type[Struct]) -> None:
        line, name = self.text.line, self.text.name
        if not tagged:
            line(f"p = {self.text.primitive('skip_tagged_fields')}(buf, p, t)")
            return
        tag, last, stop = name("tag"), name("last"), name("stop")
        line(f"t, p = {self.text.primitive('tag_count')}(buf, p, t)")
        line(f"{last} = -1")
        line("for _ in range(t):")
        self.text.depth += 1
        uvarint = self.text.primitive("read_uvarint")
        line(f"{tag}, p = {uvarint}(buf, p)")
        line(f"n, p = {uvarint}(buf, p)")
        line(f"{stop} = p + n")
        bad = f"raise {self.text.primitive('bad_tag')}({tag})"
        line(f"if {tag} <= {last} or {stop} > end:")
        line(f"    {bad}")
        line(f"{last} = {tag}")
        for index, field in enumerate(tagged):
            line(f"{'el' if index else ''}if {tag} == {field.tag}:")
            self.text.depth += 1
            self.field(field, f"{target}.{field.name}", f"{cls.__name__}.{field.name}")
            self.flush()
            self.text.depth -= 1
        line("else:")
        line(f"    p = {stop}")
        line(f"if p != {stop}:")
        line(f"    {bad}")
        self.text.depth -= 1

    # Fields

    def field(self, field: Field, target: str, label: str) -> None:
        if field.kind in FIXED:
            letter, size = FIXED[field.kind]
            self.fixed(letter, size, target)
        elif field.kind == "structure":
            self.structure(field, target)
        elif field.kind == "array":
            self.array(field, target, label)
        else:
            self.bytes_like(field.kind, field.is_nullable(self.version), target, label)

    def structure(self, field: Field, target: str) -> None:
        nullable = field.is_nullable(self.version)
        if nullable:
            # A tagged struct's null is 0, an ordinary one's is negative.
            self.fixed("b", 1, "n")
            self.flush()
            self.text.line("if n < 0:" if field.tag is None else "if n == 0:")
            self.text.line(f"    {target} = None")
            self.text.line("else:")
            self.text.depth += 1
        self.struct(field.element, self.new_struct(field, target))
        if nullable:
            self.flush()
            self.text.depth -= 1

    def bytes_like(self, kind: str, nullable: bool, target: str, label: str) -> None:
        """A string, bytes or records: `p` to `q` of the buffer."""
        self.length("h" if kind == "string" else "i", 2 if kind == "string" else 4)
        self.null(nullable, target)
        # A null that is not allowed has a length of -1 and so ends before it begins.
        self.text.line("q = p + n - 1" if self.flexible else "q = p + n")
        self.text.line("if not p <= q <= end:")
        self.text.line(f"    raise {self.text.primitive('bad_length')}({label!r}, q - p, end - p)")
        if kind == "string":
            self.text.line(f'{target} = str(buf[p:q], "utf-8", "replace")')
        elif kind == "binary":
            self.text.line(f"{target} = bytes(buf[p:q])")
        else:
            self.uses_view = True
            self.text.line(f"{target} = view[p:q]")
        self.text.line("p = q")
        self.text.depth -= nullable

    def null(self, nullable: bool, target: str) -> None:
        """Opens the branch of what is not null."""
        if nullable:
            self.text.line("if n == 0:" if self.flexible else "if n == -1:")
            self.text.line(f"    {target} = None")
            self.text.line("else:")
            self.text.depth += 1

    def array(self, field: Field, target: str, label: str) -> None:
        nullable = field.is_nullable(self.version)
        self.length("i", 4)
        self.null(nullable, target)
        if self.flexible:
            self.text.line("n -= 1")
        size = element_size(field, self.version, self.flexible)
        room = "end - p" if size == 1 else f"(end - p) // {size}"
        if self.budget:
            self.text.line("left -= n")
        if self.budget and not self.in_slices:
            self.text.line(f"if left < 0 <= n <= {room}:")
            self.text.line(f"    raise {self.text.primitive('many_elements')}({label!r})")
        self.text.line(f"if not 0 <= n <= {room}{self.budget if self.in_slices else ''}:")
        self.text.line(f"    raise {self.text.primitive('bad_length')}({label!r}, n, end - p)")
        if field.element in NUMBER_ARRAYS:
            self.numbers(field, target)
        elif isinstance(field.element, str):
            self.loop_of_values(field.element, target, label)
        else:
            self.loop_of_structs(field, target)
        self.text.depth -= nullable

    def numbers(self, field: Field, target: str) -> None:
        letter, size = FIXED[field.element]
        short, long = (
            self.text.primitive(f"{field.element.upper()}_READERS"),
            self.text.primitive("read_numbers"),
        )
        self.text.line(
            f'{target} = list({short}[n](buf, p)) if n < 17 else {long}(buf, p, n, "{letter}")'
        )
        self.text.line(f"p += n * {size}" if size > 1 else "p += n")

    def loop_of_values(self, kind: str, target: str, label: str) -> None:
        items, item = self.text.name("v"), self.text.name("e")
        python_type = {"string": "str", "binary": "bytes", "uuid": "bytes"}[kind]
        self.text.line(f"{items}: list[{python_type}] = []")
        self.text.line("for _ in range(n):")
        self.text.depth += 1
        if kind == "uuid":
            self.text.line(f"{item} = bytes(buf[p:p + 16])")
            self.text.line("p += 16")
        else:
            self.bytes_like(kind, False, item, label)
        self.text.line(f"{items}.append({item})")
        self.slice_end()
        self.text.depth -= 1
        self.text.line(f"{target} = {items}")

    def slice_end(self) -> None:
        if self.in_slices:
            self.text.line("k += 1")
            self.text.line(f"if k == {self.text.primitive('FEW_ELEMENTS')}:")
            self.text.line("    k = 0")
            self.text.line("    yield")

    def loop_of_structs(self, field: Field, target: str) -> None:
        items, item = self.text.name("v"), self.text.name("o")
        element = self.text.class_name(field.element)
        self.text.line(f"{items}: list[{element}] = []")
        self.text.line("for _ in range(n):")
        self.text.depth += 1
        self.text.line(f"{item} = {self.text.made(field.element)}")
        self.struct(field.element, item)
        self.flush()
        self.text.line(f"{items}.append({item})")
        self.slice_end()
        self.text.depth -= 1
        self.text.line(f"{target} = {items}")
