"""The page that follows a cluster, as it is served: one HTML file and one script.

Owns `file_of`, and the rights of a browser with it: run this script, and ask whom it is from.

Source: our own. Not here: what it shows (`live_state.py`).
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path

from twisted_broker.status.html import ICON

_HOME = Path(__file__).parent / "live"
_KINDS = {
    "page.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@cache
def file_of(name: str) -> tuple[str, bytes]:
    """Its content type and its content."""
    content = ICON if name == "icon.svg" else (_HOME / name).read_bytes()
    return _KINDS[name], content


@cache
def policy() -> str:
    """Content-Security-Policy: the style is that in the page's head, the script the page's."""
    _, page = file_of("page.html")
    style = page.partition(b"<style>")[2].partition(b"</style>")[0]
    known = b64encode(sha256(style).digest()).decode()
    return (
        f"default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'sha256-{known}'; "
        "img-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
