"""The page of a soak: what was measured, drawn over time. One file, no network, no script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from tests.soak.samples import Series

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 200, 60, 24
_COLOURS = ("#1b6ca8", "#c0392b", "#27874b", "#8e44ad", "#b9770e")
Points = list[tuple[float, float]]


def page(title: str, facts: Sequence[str], series: Sequence[Series]) -> str:
    """`facts`: lines above the charts."""
    charts: dict[str, Callable[[Series], Points]] = {
        "Memory, MiB": lambda each: each.of("memory"),
        "Open descriptors": lambda each: each.of("descriptors"),
        "Threads": lambda each: each.of("threads"),
        "Mean turn of the reactor, ms": Series.turn_ms,
    }
    names = sorted({each.node for each in series})
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}
    legend = " ".join(
        f'<span style="color:{colour}">&#9632; node {escape(name)}</span>'
        for name, colour in colours.items()
    )
    drawn = "".join(
        f"<h2>{escape(name)}</h2>{_chart([(each.node, of(each)) for each in series], colours)}"
        for name, of in charts.items()
    )
    listed = "".join(f"<li>{escape(line)}</li>" for line in facts)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{font:15px sans-serif;margin:2em;max-width:60em}svg{background:#fafafa}"
        "h2{font-size:1em;margin:1.5em 0 .3em}</style>"
        f"<h1>{escape(title)}</h1><ul>{listed}</ul><p>{legend}</p>{drawn}</html>"
    )


def _chart(lines: Sequence[tuple[str, Points]], colours: Mapping[str, str]) -> str:
    every = [point for _, points in lines for point in points]
    if not every:
        return "<p>nothing was measured</p>"
    end = max(x for x, _ in every) or 1
    top = max(y for _, y in every) * 1.1 or 1

    def place(x: float, y: float) -> str:
        across = _LEFT + x / end * (_WIDTH - _LEFT)
        return f"{across:.1f},{(_HEIGHT - _BOTTOM) * (1 - y / top):.1f}"

    drawn = "".join(
        f'<polyline fill="none" stroke="{colours[name]}" points="'
        f'{" ".join(place(x, y) for x, y in points)}"/>'
        for name, points in lines
        if points
    )
    marks = "".join(
        f'<text x="4" y="{float(place(0, top * part).split(",")[1]) + 12:.0f}">'
        f"{top * part:,.1f}</text>"
        for part in (0.0, 0.5, 1.0)
    )
    times = "".join(
        f'<text x="{_LEFT + (_WIDTH - _LEFT - 50) * part:.0f}" y="{_HEIGHT - 6}">'
        f"{end * part / 60:.1f} min</text>"
        for part in (0.0, 0.5, 1.0)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-size="11">{marks}{times}{drawn}</svg>'
    )
