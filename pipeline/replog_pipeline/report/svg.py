"""Plots as inline SVG: lines over time, columns, and bars. Colours come from the page's style
(classes c0, c1, …).

1. A plot is text made of its numbers alone; nothing is loaded, no script runs. What a mark stands
   for shows when the pointer rests on it (`title`).
2. Coordinates are pixels of a plot WIDTH wide, which the page scales; names are escaped here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from replog_pipeline.report.numbers import count_text, ticks

WIDTH = 760
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 30
BAR = 26
COLOURS = 6
Text = Callable[[float], str]


class Series(NamedTuple):
    """One line: a name and a value for each place on the x axis."""

    name: str
    values: Sequence[float]


class Bar(NamedTuple):
    """One bar: its name, its parts from left to right, and what is said at its end."""

    name: str
    parts: Sequence[float]
    label: str


def lines(
    places: Sequence[str], series: Sequence[Series], text: Text = count_text, height: int = 210
) -> str:
    """Lines with filled ground over named places of one distance; the lines share the y axis."""
    scale = ticks(max((value for each in series for value in each.values), default=0))
    inner, across = height - TOP - BOTTOM, WIDTH - LEFT - RIGHT
    step = across / max(1, len(places) - 1)

    def point(at: int, value: float) -> str:
        return f"{LEFT + at * step:.1f},{TOP + inner * (1 - value / scale[-1]):.1f}"

    drawn = [*_grid(scale, text, height), *_places(places, LEFT, step, height)]
    for number, each in enumerate(series):
        points = " ".join(point(at, value) for at, value in enumerate(each.values))
        ground = f"{point(0, 0)} {points} {point(len(places) - 1, 0)}"
        colour = f"c{number % COLOURS}"
        drawn.append(
            f'<polygon class="{colour} ground" points="{ground}"/><polyline class="{colour} '
            f'line" points="{points}"/>'
        )
        if len(places) == 1:
            x, y = point(0, each.values[0]).split(",")
            drawn.append(f'<circle class="{colour}" cx="{x}" cy="{y}" r="4"/>')
    drawn += [
        _hover(LEFT + (at - 0.5) * step, TOP, step, inner, _hover_text(place, series, at, text))
        for at, place in enumerate(places)
    ]
    return _plot(height, drawn)


def columns(
    places: Sequence[str], values: Sequence[float], text: Text = count_text, height: int = 190
) -> str:
    """One column per place."""
    scale = ticks(max(values, default=0))
    inner, step = height - TOP - BOTTOM, (WIDTH - LEFT - RIGHT) / max(1, len(places))
    wide = min(step * 0.8, 72)
    drawn = [*_grid(scale, text, height), *_places(places, LEFT + step / 2, step, height)]
    for at, (place, value) in enumerate(zip(places, values, strict=True)):
        tall = inner * value / scale[-1]
        x = LEFT + at * step + (step - wide) / 2
        drawn.append(_rect("c0", x, TOP + inner - tall, wide, tall, f"{place}: {text(value)}"))
    return _plot(height, drawn)


def bars(rows: Sequence[Bar], names: Sequence[str] = (), room: int = 190) -> str:
    """Horizontal bars, each of one or several parts side by side; `room` pixels for the names on
    the left.
    """
    longest = max((sum(row.parts) for row in rows), default=0) or 1
    across = WIDTH - room - 130
    drawn = []
    for number, row in enumerate(rows):
        y, x = number * BAR + 4, float(room)
        drawn.append(
            f'<text class="name" x="{room - 8}" '
            f'y="{y + 14}">{escape(_short(row.name, room // 7))}</text>'
        )
        for part, value in enumerate(row.parts):
            wide = across * value / longest
            told = (
                f"{row.name}: {names[part]} {count_text(value)}"
                if names
                else f"{row.name}: {row.label}"
            )
            drawn.append(_rect(f"c{part}", x, y, max(wide, 1.0 if value else 0.0), BAR - 8, told))
            x += wide
        drawn.append(f'<text class="value" x="{x + 6:.1f}" y="{y + 14}">{escape(row.label)}</text>')
    return _plot(len(rows) * BAR + 6, drawn)


def legend(names: Sequence[str]) -> str:
    """The names beside their colours."""
    marks = "".join(
        f'<span class="mark c{number % COLOURS}"></span>{escape(name)} '
        for number, name in enumerate(names)
    )
    return f'<p class="legend">{marks}</p>'


def _grid(scale: Sequence[float], text: Text, height: int) -> Iterator[str]:
    inner = height - TOP - BOTTOM
    for value in scale:
        y = TOP + inner * (1 - value / scale[-1])
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="name" x="{LEFT - 6}" y="{y + 4:.1f}">{escape(text(value))}</text>'


def _places(places: Sequence[str], first: float, step: float, height: int) -> Iterator[str]:
    """As many names below the x axis as there is room for."""
    longest = max((len(place) for place in places), default=1)
    every = max(1, -(-int(longest * 7 + 14) // max(1, int(step))))
    for at in range(0, len(places), every):
        x = min(max(first + at * step, LEFT), WIDTH - RIGHT - longest * 3)
        yield f'<text class="place" x="{x:.1f}" y="{height - 10}">{escape(places[at])}</text>'


def _hover_text(place: str, series: Sequence[Series], at: int, text: Text) -> str:
    return "\n".join([place, *(f"{each.name}: {text(each.values[at])}" for each in series)])


def _hover(x: float, y: float, wide: float, tall: float, told: str) -> str:
    return (
        f'<rect class="hover" x="{x:.1f}" y="{y}" width="{max(wide, 1):.1f}" '
        f'height="{tall}"><title>{escape(told)}</title></rect>'
    )


def _rect(kind: str, x: float, y: float, wide: float, tall: float, told: str) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}"'
    return f'<rect class="{kind}" {shape} rx="2"><title>{escape(told)}</title></rect>'


def _short(name: str, longest: int) -> str:
    """The name without its middle: its end tells partitions of a topic apart."""
    half = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[:half]}…{name[-half:]}"


def _plot(height: int, drawn: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(drawn)}</svg>'
