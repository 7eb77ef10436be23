"""The report's page and tables without Spark: plots are drawn of what was counted, nothing
leaves the file, text is escaped.
"""

from __future__ import annotations

import csv
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from replog_pipeline.report import bins, sections, svg, tables
from replog_pipeline.report.numbers import (
    count_text,
    key_text,
    minute_text,
    share_text,
    size_text,
    ticks,
)
from replog_pipeline.report.page import Page, Section, render
from replog_pipeline.report.svg import Bar, Series
from replog_pipeline.report.tables import Table


def drawn(text):
    return ElementTree.fromstring(text)  # noqa: S314  our own page


def titles(plot):
    return [title.text for title in drawn(plot).iter("title")]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.23 KB"), (12_345_678, "12.3 MB"), (999_999, "1 MB")],
)
def test_sizes_are_short(count, text):
    assert size_text(count) == text


def test_counts_shares_and_minutes():
    assert [count_text(count) for count in (7, 9999, 10_000, 1_234_567)] == [
        "7",
        "9,999",
        "10k",
        "1.23M",
    ]
    assert (share_text(1, 3), share_text(0, 0)) == ("33.3 %", "–")
    assert (minute_text(0), minute_text(10**15)) == ("1970-01-01 00:00", "–")


@pytest.mark.parametrize("highest", [0, 0.3, 1, 7, 99, 1000, 123_456])
def test_ticks_are_round_few_and_reach_the_top(highest):
    made = ticks(highest)
    assert made[0] == 0 and made[-1] >= highest and 2 <= len(made) <= 6
    assert len({round(after - before, 9) for before, after in pairwise(made)}) == 1


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, "(null)"),
        (b"a b", "a b"),
        (b"\xff\0", "0xff00"),
        (b"a\nb", "0x610a62"),
        ("é".encode(), "é"),
    ],
)
def test_keys_are_text_where_they_can_be(key, text):
    assert key_text(key) == text


def test_long_keys_are_cut():
    assert key_text(b"x" * 100, 10) == "x" * 9 + "…"


def test_a_line_goes_through_its_values():
    plot = svg.lines(["a", "b", "c"], [Series("one", [0, 10, 5])])
    (line,) = [each for each in drawn(plot) if each.tag == "polyline"]
    heights = [float(point.split(",")[1]) for point in line.get("points").split()]
    assert heights[1] < heights[2] < heights[0]
    assert titles(plot) == ["a\none: 0", "b\none: 10", "c\none: 5"]


def test_columns_and_bars_are_as_long_as_their_values():
    tall = [
        float(each.get("height"))
        for each in drawn(svg.columns(["a", "b"], [10, 5]))
        if each.tag == "rect"
    ]
    assert tall[0] == pytest.approx(2 * tall[1], abs=0.2)
    wide = [
        float(each.get("width"))
        for each in drawn(svg.bars([Bar("x", [30, 10], "40"), Bar("y", [20], "20")]))
        if each.tag == "rect"
    ]
    assert wide[0] == pytest.approx(3 * wide[1], abs=0.2) and wide[2] == pytest.approx(
        2 * wide[1], abs=0.2
    )


@pytest.mark.parametrize(
    "plot",
    [svg.lines([], []), svg.columns([], []), svg.bars([]), svg.lines(["only"], [Series("s", [3])])],
)
def test_plots_of_nothing_or_one_thing_are_plots(plot):
    assert drawn(plot).tag == "svg"


def test_names_are_escaped_wherever_they_show():
    evil = '<script>"&'
    for plot in (
        svg.lines([evil], [Series(evil, [1])]),
        svg.columns([evil], [1]),
        svg.bars([Bar(evil, [1], evil)]),
    ):
        assert "<script>" not in plot
        drawn(plot)
    page = render(
        Page(
            evil, [evil], [(evil, evil)], [Section(evil, evil, (), Table("t", (evil,), [(evil,)]))]
        )
    )
    assert "<script>" not in page
    assert "<script>" not in svg.legend([evil]) + sections.keys(*key_tables(evil)).plots[0]


def key_tables(topic):
    return Table(
        "keys", ("topic", "rank", "key", "records", "bytes"), [(topic, 1, b"k", 5, 50)]
    ), Table("partitions", (), [(topic, 0, 9, 90, 0, 8)])


class Outside(HTMLParser):
    """Collects what a page would load."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [
            (tag, name) for name, _ in attributes if name in ("src", "href", "srcset", "data")
        ]
        self.found += [(tag, "")] if tag in ("script", "link", "iframe", "img") else []


def test_the_page_loads_nothing():
    page = render(
        Page("t", [], [], [sections.traffic(MINUTES), sections.keys(*key_tables("orders"))])
    )
    reader = Outside()
    reader.feed(page)
    assert reader.found == []
    assert "url(" not in page and "@import" not in page


MINUTES = Table(
    "minutes",
    ("topic", "time", "minute", "records", "bytes"),
    [
        ("a", "", 1000, 5, 50),
        ("a", "", 1001, 7, 70),
        ("b", "", 1001, 1, 10),
        ("a", None, None, 3, 30),
    ],
)


def test_bins_are_as_narrow_as_can_be_drawn():
    assert bins.width(1000, 1001, 400) == 1
    assert bins.width(0, 60 * 24, 400) == 5
    assert bins.width(0, 60 * 24 * 365, 400) == 1440
    assert [sections.bin_text(width) for width in (1, 10, 60, 360, 1440, 7 * 1440)] == [
        "per minute",
        "per 10 minutes",
        "per hour",
        "per 6 hours",
        "per day",
        "per 7 days",
    ]


@pytest.mark.parametrize("unit", [1, 2, 360, 2880, 7 * 1440, 3 * 365 * 1440])
@pytest.mark.parametrize("span", [0, 1, 399, 400, 10**4, 10**6, 10**9, 10**12])
@pytest.mark.parametrize("first", [0, 123_457])
def test_bins_are_bounded_whatever_the_range_and_join_whole_ones(first, span, unit):
    width = bins.width(first, first + span, 400, unit)
    assert (first + span) // width - first // width < 400 and width % unit == 0


def test_bins_lose_no_record_and_few_lines_are_drawn():
    rows = [(f"t{number}", "", 1000 + number, number + 1, 1) for number in range(9)]
    series = sections.binned(rows, 3, 2, 500, 504)
    assert [each.name for each in series] == ["t8", "t7", "t6", "t5", "5 other topics"]
    assert sum(sum(each.values) for each in series) == sum(range(10))


def test_codecs_are_summed_over_sizes():
    sizes = [
        dict(
            topic="t", codec="zstd", bucket=bucket, batches=1, records=10, stored=100, inflated=300
        )
        for bucket in (6, 7)
    ]
    table = sections.codec_table(sizes)
    assert table.rows == [("t", "zstd", 2, 20, 200, 600, 3.0)]
    assert "3.00 : 1" in sections.compression(table).plots[0]
    assert titles(svg.columns(["64 B"], [1])) == ["64 B: 1"]
    assert "on average 10.0 records and 100 B" in sections.batches(sizes).note


def test_sections_say_why_they_are_empty():
    empty = Table("x", (), [])
    assert sections.traffic(empty).note == "No record has a timestamp."
    assert "segments:DIRECTORY" in sections.batches([]).note
    assert sections.keys(empty, empty).note == "No record has a key."
    assert sections.lag(None, "because").note == "because"


def test_compaction_is_drawn_as_what_stays_and_what_goes():
    table = Table(
        "compaction", (), [("t", 0, 10, 1000, 3, 0, 2, 200, 1), ("t", 1, 10, 1000, 3, 0, 3, 300, 0)]
    )
    assert "75.0 % of 2 KB go" in sections.compaction(table).plots[0]


def test_a_table_is_a_csv_file(tmp_path):
    path = tables.write(
        Table("keys", ("key", "records"), [(b"a,b", 1), (None, 2), (b"\xff", 3)]), tmp_path
    )
    with path.open() as file:
        assert list(csv.reader(file)) == [
            ["key", "records"],
            ["a,b", "1"],
            ["", "2"],
            ["0xff", "3"],
        ]


def test_a_long_table_is_cut_on_the_page_and_says_so():
    text = tables.html(
        Table("many", ("n", "bytes"), [(number, 1000 * number) for number in range(200)]), shown=50
    )
    assert text.count("<tr>") == 51
    assert "and 150 more in many.csv" in text
    assert "<td class=number>49 KB</td>" in text


def test_skew_is_the_fullest_partition_against_the_mean():
    table = Table(
        "partitions", (), [("a", 0, 30), ("a", 1, 10), ("b", 0, 5), ("c", 0, 0), ("c", 1, 0)]
    )
    assert sections.skews(table) == {"a": 1.5}


def test_a_long_name_keeps_its_end():
    assert "orders-of-t…artment-117" in svg.bars(
        [Bar("orders-of-the-whole-department-117", [1], "")], room=170
    )
