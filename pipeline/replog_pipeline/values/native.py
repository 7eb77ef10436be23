"""Which JSON values Spark itself decodes, without Python: wherever that gives the same.

1. Spark takes a value only if it is sure of it; every other value is decoded in Python
   (`values.column`), which alone makes errors. So a value's columns do not depend on who read it.
2. A schema is Spark's where its columns are structs, arrays, integers, doubles, booleans, dates and
   texts of strings. Maps (a key that comes twice), decimals (Spark rounds), timestamps (Spark takes
   numbers for seconds) and JSON text (its spelling) are Python's.
3. Not sure is a value that is no UTF-8; that Spark finds fault with in any field; that has a key
   spelled otherwise than its column, which Spark would pass over; an ASCII letter or half of a pair
   as `\\u`; a number that may be too large for a double; anything but a string in a field of text.
   (In an array of texts Spark leaves it as it is written: JSON text all the same.)
4. Spark reads the beginning of a text and passes over the rest. So the value is read within an
   array, before an element with a name that nobody can guess: only if that follows is it whole.

Source: Spark's JSON functions, 4.2. Not here: reading them (`jobs.archive.native_json`); Avro and
Protobuf, of which `from_avro` and `from_protobuf` do not say whether a value was read to its last
byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa

from replog_pipeline.values.json_schema import JsonSchema
from replog_pipeline.values.registry import AnySchema

UNSURE = r"\\u(?:00[0-7]|d[89a-f])|\d{300}|e\+?\d{3}"
UNSPEAKABLE = frozenset('"\\')
SCALARS = frozenset(
    each.id for each in (pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.date32())
)


def can_read(kind: pa.DataType, schemas: Sequence[AnySchema]) -> bool:
    """Whether Spark reads values of `kind`, the type of all these schemas."""
    return (
        pa.types.is_struct(kind)
        and is_plain(kind)
        and all(isinstance(each, JsonSchema) and each.is_plain for each in schemas)
    )


def is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(
            each.name.isascii() and UNSPEAKABLE.isdisjoint(each.name) and is_plain(each.type)
            for each in kind
        )
    return is_plain(kind.value_type) if pa.types.is_list(kind) else kind.id in SCALARS


def fields(kind: pa.DataType) -> list[pa.Field]:
    """All of them, at any depth."""
    if pa.types.is_list(kind):
        return fields(kind.value_type)
    if not pa.types.is_struct(kind):
        return []
    return [each for field in kind for each in (field, *fields(field.type))]


def one_of(names: set[str], spelled: Callable[[str], str]) -> str:
    return "|".join(spelled(name) for name in sorted(names))


def unsure(kind: pa.DataType) -> str:
    """A regular expression of Java: a value that has it is Python's."""
    found = fields(kind)
    own = one_of({each.name for each in found}, re.escape)
    alike = one_of({each.name for each in found}, lambda name: "".join(map(variants, name)))
    texts = one_of({each.name for each in found if pa.types.is_string(each.type)}, re.escape)
    no_string = rf'|"(?:{texts})"\s*:\s*[^"n\s]' if texts else ""
    return rf'(?iu){UNSURE}|"(?!(?-i:{own})")(?:{alike})"{no_string}'


def variants(letter: str) -> str:
    """How a key of JSON may have what is this letter in the name of its column."""
    if letter == "_":
        return r"(?:[ ,;{}()=_]|\\[nt])"
    return r"\\?/" if letter == "/" else re.escape(letter)
