"""Numbers in text: what Kafka 4.3.1's `ConfigDef.parseType` answered for each of these texts."""

from __future__ import annotations

import pytest

from twisted_broker.java_numbers import (
    INT_MAX,
    INT_MIN,
    is_digits,
    parse_double,
    parse_whole,
    trimmed,
)
from twisted_broker.settings import ConfigError, PropertiesError, Setting, Type, parse_properties

# text, as INT, as LONG, as DOUBLE; None: refused
TABLE = [
    ("1", 1, 1, 1.0),
    (" 1 ", 1, 1, 1.0),
    ("\t1\n", 1, 1, 1.0),
    ("\0001", 1, 1, 1.0),
    ("\x1f1", 1, 1, 1.0),
    ("\xa01", None, None, None),
    ("\u20031", None, None, None),
    ("\x851", None, None, None),
    ("1_000", None, None, None),
    ("+1", 1, 1, 1.0),
    ("-0", 0, 0, -0.0),
    ("+-1", None, None, None),
    ("- 1", None, None, None),
    ("0x10", None, None, None),
    ("0b1", None, None, None),
    ("1.0", None, None, 1.0),
    ("1e3", None, None, 1000.0),
    ("1L", None, None, None),
    ("٣", 3, 3, None),
    ("１２", 12, 12, None),
    ("-٣", -3, -3, None),
    ("\U0001d7cf", None, None, None),
    ("²", None, None, None),
    ("", None, None, None),
    ("  ", None, None, None),
    ("00000000000000000001", 1, 1, 1.0),
    ("2147483647", INT_MAX, INT_MAX, 2147483647.0),
    ("2147483648", None, 2**31, 2147483648.0),
    ("-2147483648", INT_MIN, INT_MIN, -2147483648.0),
    ("9223372036854775807", None, 2**63 - 1, 9.223372036854775807e18),
    ("9223372036854775808", None, None, 9.223372036854775808e18),
    ("1 000", None, None, None),
    ("1,000", None, None, None),
    ("1.5f", None, None, 1.5),
    ("1.5D", None, None, 1.5),
    (".5", None, None, 0.5),
    ("5.", None, None, 5.0),
    ("+.5", None, None, 0.5),
    ("1e400", None, None, float("inf")),
    ("-1e400", None, None, float("-inf")),
    ("1e-400", None, None, 0.0),
    ("nan", None, None, None),
    ("Infinity", None, None, float("inf")),
    ("-Infinity", None, None, float("-inf")),
    ("inf", None, None, None),
    ("infinity", None, None, None),
    ("Infinityf", None, None, None),
    ("0x1.8p3", None, None, 12.0),
    ("0x1p-2f", None, None, 0.25),
    ("0x1.8", None, None, None),
    ("0x.8p1", None, None, 1.0),
    ("0x8.P1", None, None, 16.0),
    ("0X1P3d", None, None, 8.0),
    ("-0x1p5000", None, None, float("-inf")),
    ("0x_1p1", None, None, None),
    ("1_0.5", None, None, None),
    ("٣.٥", None, None, None),
    ("1e+3", None, None, 1000.0),
    ("1e3_0", None, None, None),
    ("1.e2", None, None, 100.0),
    (".", None, None, None),
    ("e5", None, None, None),
    ("1e", None, None, None),
    ("1. 5", None, None, None),
    ("1ff", None, None, None),
]


@pytest.mark.parametrize(("text", "as_int", "as_long", "as_double"), TABLE)
def test_as_kafka_reads_it(
    text: str, as_int: int | None, as_long: int | None, as_double: float | None
) -> None:
    def read(kind: Type) -> object:
        try:
            return Setting("x", kind, None, "").parse(text)
        except ConfigError:
            return None

    assert [read(Type.INT), read(Type.LONG), read(Type.DOUBLE)] == [as_int, as_long, as_double]


def test_nan_is_no_value_of_ours() -> None:
    """Kafka takes it, and every comparison with it is false."""
    with pytest.raises(ValueError, match="no number"):
        parse_double("NaN")


def test_where_nothing_is_trimmed() -> None:
    for text in (" 1", "1 ", "1\n", "9" * 5_000):
        with pytest.raises(ValueError, match=r"number|digits"):
            parse_whole(text)
    with pytest.raises(ValueError, match="from -2147483648 to 2147483647"):
        parse_whole("2147483648", INT_MIN, INT_MAX)


def test_digits_are_those_of_ascii() -> None:
    assert is_digits("0123456789")
    assert not any(map(is_digits, ("", "-1", "²", "٣", "1_0", " 1")))


def test_a_list_and_a_text_keep_what_java_does_not_trim() -> None:
    assert Setting("x", Type.STRING, None, "").parse("\xa0a\u2003 ") == "\xa0a\u2003"
    assert Setting("x", Type.PASSWORD, None, "").parse(" \xa0secret\xa0 ") == "\xa0secret\xa0"
    assert Setting("x", Type.LIST, None, "").parse(" \xa0a , b\u2003,c ") == (
        "\xa0a",
        "b\u2003",
        "c",
    )
    assert trimmed("\x00\x1f a\x7f ") == "a\x7f"


def test_a_stored_number_that_an_earlier_version_took_is_obeyed_as_it_was_meant() -> None:
    """Left out, a retention of years would become the default week."""
    row = Setting("retention.ms", Type.LONG, None, "", low=-1)
    assert row.nearest("9_999_999_999_999") == "9999999999999"
    assert row.nearest("abc") is None
    assert Setting("ratio", Type.DOUBLE, None, "", low=0, high=1).nearest("0.2_5") == "0.25"


def test_a_files_lines_and_escapes_are_javas() -> None:
    """A line ends with CR or LF only; an escape is four hex digits."""
    text = "a=x\u2028y\x85z\x0bw\r\nb=\\u00e9\\ud83d\\ude00\rc=1"
    assert parse_properties(text) == {"a": "x\u2028y\x85z\x0bw", "b": "é\U0001f600", "c": "1"}
    for bad in ("\\u1_23", "\\u 123", "\\uzzzz", "\\u12", "\\u+123"):
        with pytest.raises(PropertiesError, match="four hex digits"):
            parse_properties(f"a={bad}")
