"""What a test has struck and not healed, and by which of its lines.

Owns `InForce`; `STRIKES`, the calls that strike; `line_of_test`, which a strike is sent with.

Bounded: one for each machine and way of being struck, link, disk and fault of requests, and the
calendar; what is
told of them by `MOST`.

Source: our own. Not here: what they do (`running_cluster.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

MOST = 5
_MACHINES = {
    "crash": "has no power",
    "fence": "is fenced",
    "freeze": "is frozen",
    "go_stale": "is stale",
    "kill": "is killed",
    "skew_clock": "has its calendar moved",
    "stop_broker": "is stopped",
}
_LINKS = {"cut_link": "is cut", "delay_link": "is slow", "narrow_link": "is narrow"}
_DISKS = {"fail": "fails", "fill": "is full", "slow": "is slow", "stall": "stalls"}
_HEALS = {"fence": "unfence", "freeze": "thaw", "go_stale": "catch_up", "skew_clock": "skew_clock"}
_LAST = (
    *("lift_fault", "calendar", "skew_clock", "heal_link", "heal_disk"),
    *("thaw", "unfence", "catch_up", "restart_broker"),
)
_HEALED = {
    "catch_up": ("go_stale",),
    "restart_broker": ("crash", "go_stale", "kill", "stop_broker"),
    "thaw": ("freeze",),
    "unfence": ("fence",),
}
STRIKES = {
    *_MACHINES,
    *_LINKS,
    "calendar",
    "drop_connections",
    "restart_broker",
    "strike_disk",
    "strike_requests",
}
# This package, and the loop that runs a test's coroutines.
_PASSED = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.join(os.path.dirname(os.__file__), "asyncio") + os.sep,
)


def line_of_test() -> str:
    """FILE:LINE that called the public names of this package; empty: none did."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_PASSED) and os.path.basename(path) != "contextlib.py":
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def with_line(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with the line of the test where it strikes."""
    return {**arguments, "line": line_of_test()} if name in STRIKES else arguments


class InForce:
    """`title(node)`: a machine for people; `is_over(number)`: a fault of requests has struck as
    often as it should.
    """

    def __init__(self, title: Callable[[int], str], is_over: Callable[[int], bool]) -> None:
        self._title, self._is_over = title, is_over
        self._found: dict[tuple[Any, ...], tuple[str, str, dict[str, Any]]] = {}
        """a sentence, and the call that heals it"""

    def called(self, name: str, given: dict[str, Any], result: Any, line: str) -> None:
        """That call is done."""
        found, at = self._found, f" ({line})" if line else ""
        if name in _HEALED:
            for each in _HEALED[name]:
                found.pop((each, given["node"]), None)
        elif name in _MACHINES:
            node = given["node"]
            if name == "skew_clock" and not given["ms"]:
                found.pop((name, node), None)
                return
            text = f"{self._title(node)} {_MACHINES[name]}{at}"
            more = {"ms": 0} if name == "skew_clock" else {}
            found[name, node] = text, _HEALS.get(name, "restart_broker"), {"node": node, **more}
        elif name in _LINKS or name == "heal_link":
            ends = {"one": given["one"], "other": given["other"]}
            key = sorted(map(str, ends.values()))
            if name == "heal_link":
                for each in _LINKS:
                    found.pop((each, *key), None)
            else:
                text = f"the link of {' and '.join(key)} {_LINKS[name]}{at}"
                found[name, *key] = text, "heal_link", ends
        elif name == "strike_disk" and given["verb"] in _DISKS:
            text = f"the disk of {self._title(given['node'])} {_DISKS[given['verb']]}{at}"
            found["disk", given["node"], given["verb"]] = text, "heal_disk", {"node": given["node"]}
        elif name == "heal_disk":
            for verb in _DISKS:
                found.pop(("disk", given["node"], verb), None)
        elif name == "calendar":
            found.pop((name,), None)
            if given["how"] == "fix":
                found[name,] = f"the calendar stands still{at}", name, {"how": "run"}
        elif name == "strike_requests":
            api = given.get("api") or "all requests"
            names = api if isinstance(api, str) else ", ".join(api)
            text = f"{names}: {given['action']}{at}"
            found["requests", result] = text, "lift_fault", {"number": result}
        elif name == "lift_fault":
            found.pop(("requests", given["number"]), None)

    def _left(self) -> list[tuple[str, str, dict[str, Any]]]:
        for key in [each for each in self._found if each[0] == "requests"]:
            if self._is_over(key[1]):
                del self._found[key]
        return [*self._found.values()]

    def texts(self) -> list[str]:
        """A sentence each, the last ones."""
        return [text for text, _, _ in self._left()[-MOST:]]

    def next_healing(self) -> tuple[list[str], str, dict[str, Any]] | None:
        """A sentence for each that it heals, and the call. A machine that comes back needs its
        links.
        """
        left = self._left()
        if not left:
            return None
        _, name, arguments = min(left, key=lambda each: _LAST.index(each[1]))
        texts = [each[0] for each in left if each[1:] == (name, arguments)]
        return texts, name, arguments
