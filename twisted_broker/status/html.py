"""The parts that all pages have: frame, style, tables, pauses. Ring 1.

Owns the HTML's form, and the headers that go with it.

1. `twisted.web.template` writes it: all text and all attributes are escaped.
2. No script runs, and nothing is loaded from elsewhere: `HEADERS` forbid it to the browser.
3. Rows are written a few at a time (`Pauses.rows`): no page holds the reactor.
4. Light and dark as the browser's; every table has a caption and headers with a scope; what a
   colour says is said in words, too. Wide tables scroll by themselves on a small screen.

Source: our own. Not here: what is shown (`overview_page.py`, `partition_pages.py`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode

from twisted.internet.defer import Deferred
from twisted.web.template import Tag, flattenString, tags

from twisted_broker.turns import SECONDS_PER_TURN, Turns

STYLE = """
:root{color-scheme:light dark;--back:#fff;--card:#f5f6f8;--text:#1b1e22;--soft:#565e68;
--line:#d9dde2;--link:#0b57a8;--good:#17633a;--bad:#a61f11;--warn:#7a4a00}
@media(prefers-color-scheme:dark){:root{--back:#14171b;--card:#1d2127;--text:#e5e8ec;--soft:#a5adb8;
--line:#363c45;--link:#82baff;--good:#74d3a0;--bad:#ff9486;--warn:#f2bd62}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem 1.25rem 3rem;max-width:76rem;background:var(--back);
color:var(--text);font:15px/1.5 system-ui,sans-serif}
a{color:var(--link)}a:focus-visible,input:focus-visible,button:focus-visible,[tabindex]:focus-visible{
outline:2px solid var(--link);outline-offset:2px}
header{display:flex;flex-wrap:wrap;gap:.25rem 1.5rem;align-items:baseline;margin-bottom:1rem}
h1{font-size:1.45rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
code,.id{font-family:ui-monospace,monospace;font-size:.93em}
.soft,caption,nav{color:var(--soft)}nav{margin-left:auto}nav a{margin-left:1rem}
.health{border-left:.4rem solid var(--good);background:var(--card);padding:.7rem 1rem;
font-size:1.1rem;font-weight:600;margin:0}
.health.bad{border-color:var(--bad)}.health.warn{border-color:var(--warn)}
.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
ul.troubles{margin:.6rem 0 0;padding-left:1.4rem}
ul.troubles li{margin:.2rem 0;overflow-wrap:anywhere}
dl.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.6rem 1rem;
margin:1rem 0}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;overflow-wrap:anywhere}
dl.facts dd{font-size:1.1rem;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
caption{text-align:left;padding:.2rem 0;font-size:.9rem}
th,td{text-align:left;vertical-align:top;padding:.3rem .9rem .3rem 0;
border-bottom:1px solid var(--line)}th{font-weight:600;white-space:nowrap}
td{white-space:nowrap}td.text{white-space:normal;overflow-wrap:anywhere}
tbody th{font-weight:400;white-space:normal;overflow-wrap:anywhere;min-width:7rem}
td.n,th.n{text-align:right;padding-right:1.6rem;font-variant-numeric:tabular-nums;white-space:nowrap}
tr:target{background:var(--card)}
form{display:flex;flex-wrap:wrap;gap:.5rem;align-items:center;margin:.4rem 0}
input,button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--soft);
border-radius:.3rem;padding:.25rem .6rem}input{min-width:0;width:16rem;max-width:100%}
p.pages{display:flex;flex-wrap:wrap;gap:1rem}
@media(max-width:40rem){.wide{display:none}body{padding:.8rem}nav{margin-left:0}
nav a{margin:0 1rem 0 0}th,td{padding-right:.6rem}}
"""
_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
ICON = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><g fill="#3b7dd8">'
    b'<rect x="1" y="2" width="14" height="3" rx="1"/><rect x="1" y="6.5" width="10" height="3" '
    b'rx="1"/><rect x="1" y="11" width="12" height="3" rx="1"/></g></svg>\n'
)
PAGE_ROWS = 100
_ROWS_PER_PIECE = 4
_LONGEST = 200


class ClientGone(Exception):
    """Nobody reads the page any more."""


class Pauses:
    """Others are served between the pieces of a long page. `is_client_gone`, once set, ends it
    early: what a template waits for cannot be cancelled without a line in the log.
    """

    def __init__(self, turns: Turns, clock: Any) -> None:
        self._turns, self._clock = turns, clock
        self.is_client_gone = False

    async def run(self, steps: Iterator[None]) -> None:
        """The steps, as many in a turn as its time allows. Raises ClientGone."""
        began = self._clock.seconds()
        for number, _ in enumerate(steps, 1):
            # By number, too: a simulated clock stands still within a turn.
            if number % 4 == 0 or self._clock.seconds() - began >= SECONDS_PER_TURN / 2:
                await self._turns.next_turn()
                if self.is_client_gone:
                    raise ClientGone
                began = self._clock.seconds()

    def apart(self, *parts: Any) -> Any:
        """Sections of a page, each in turns of its own."""
        return self._rows(parts, 1)

    def rows(self, rows: Iterable[Any]) -> Any:
        """The rows, with pauses in between, as the template writes them."""
        return self._rows(rows, _ROWS_PER_PIECE)

    def _rows(self, rows: Iterable[Any], at_once: int) -> Iterator[Any]:
        for number, row in enumerate(rows, 1):
            if self.is_client_gone:
                return
            yield row
            if number % at_once == 0:
                yield self.pause()

    def pause(self) -> Deferred[str]:
        """Written as nothing, in a later turn."""
        return self._turns.next_turn().addCallback(lambda _: "")


async def document(title: str, refresh: int, *body: Any) -> bytes:
    """The whole page. `refresh`: s until the browser loads it again, 0 never."""
    again = tags.meta(content=str(refresh), **{"http-equiv": "refresh"}) if refresh else ""
    page = tags.html(
        tags.head(
            tags.meta(charset="utf-8"),
            tags.title(title),
            tags.meta(name="viewport", content="width=device-width, initial-scale=1"),
            again,
            tags.link(rel="icon", href="/icon.svg", type="image/svg+xml"),
            tags.style(STYLE),
        ),
        tags.body(*body),
        lang="en",
    )
    found: bytes = await flattenString(None, page)
    return b"<!DOCTYPE html>\n" + found + b"\n"


def main_part(*children: Any) -> Tag:
    """`tags` does not know this one."""
    return Tag("main")(*children)


def short(text: str) -> str:
    """A name as it is shown; the longest would fill the page. Nothing invisible stays."""
    shown = "".join(sign if sign.isprintable() else "\ufffd" for sign in text[: _LONGEST + 1])
    return f"{shown[:_LONGEST]}…" if len(shown) > _LONGEST else shown


def link(path: tuple[str, ...], text: Any, **query: str) -> Tag:
    """A link to one of our own pages."""
    address = "/" + "/".join(quote(part, safe="") for part in path)
    return tags.a(text, href=f"{address}?{urlencode(query)}" if query else address)


def explain_link(topic: str, partition: int, text: Any = None) -> Tag:
    """A link to the page that explains a partition; `text` None: its name."""
    return link(
        ("explain", topic, str(partition)), f"{short(topic)}-{partition}" if text is None else text
    )


class Table:
    """A table with a caption. A column: its title, and its class (`n`: a number; `text`: long;
    `wide`: not on small screens).
    """

    def __init__(self, caption: str, *columns: tuple[str, str]) -> None:
        self._caption, self._columns = caption, columns

    def row(self, *cells: Any, mark: str = "") -> Tag:
        """The first cell is the row's header. `mark`: its id."""
        made = []
        for number, (cell, (_, kind)) in enumerate(zip(cells, self._columns, strict=True)):
            attributes = {"class": kind} if kind else {}
            made.append(
                tags.td(cell, **attributes) if number else tags.th(cell, scope="row", **attributes)
            )
        return tags.tr(*made, **({"id": mark} if mark else {}))

    def whole(self, rows: Any) -> Tag:
        """With its head."""
        head = [
            tags.th(title, scope="col", **({"class": kind} if kind else {}))
            for title, kind in self._columns
        ]
        return tags.div(
            tags.table(tags.caption(self._caption), tags.thead(tags.tr(*head)), tags.tbody(rows)),
            **{"class": "scroll", "tabindex": "0", "role": "region", "aria-label": self._caption},
        )


def facts(*rows: tuple[str, Any]) -> Tag:
    """Names and values, side by side."""
    return tags.dl(
        *(tags.div(tags.dt(name), tags.dd(value)) for name, value in rows), **{"class": "facts"}
    )


def pages(first: int, shown: int, total: int, address: Any) -> Any:
    """Links to the pages before and after. `address(number)`: of the page that begins there."""
    if total <= shown and not first:
        return ""
    parts: list[Any] = []
    if first > 0:
        parts.append(tags.a("← before", href=address(max(0, first - PAGE_ROWS)), rel="prev"))
    parts.append(
        tags.span(f"{first + 1:,} to {first + shown:,} of {total:,}" if shown else f"of {total:,}")
    )
    if first + shown < total:
        parts.append(tags.a("next →", href=address(first + shown), rel="next"))
    return tags.p(*parts, **{"class": "pages"})


def number_of(count: int, kind: str = "bad") -> Any:
    """A count of what should not be: in colour where there is any."""
    return tags.span(f"{count:,}", **{"class": kind}) if count else "0"


def brokers_text(brokers: Iterable[int]) -> str:
    """`1, 2, 3`; `none`."""
    return ", ".join(map(str, brokers)) or "none"
