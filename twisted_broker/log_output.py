"""Where log lines go and which: `--log-json`, `--log-level`.

Owns the reading of both options, and lines as JSON.

1. One event is one line: a JSON object with `time`, `level`, `logger`, `text`, the `traceback` of a
   failure, and the event's own parts. No value adds a line or a part, whatever it holds.
2. Levels at the start are the levels that the broker loggers show and change while it runs
   (`api/broker_loggers.py`).

Ring 2. Source: `twisted.logger`, `twistd`'s own log file. Not here: the form of lines
(`event_lines.py`).
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, TextIO

from twisted.logger import ILogObserver, eventAsText, formatEvent
from zope.interface import implementer

_PACKAGE, _SHORT = "twisted_broker", "replog"
_NAMES = {"replog.reactor": "twisted_broker.reactor_watch"}
_LEVELS = ("trace", "debug", "info", "warn", "error", "fatal")
_twistd: dict[str, Any] = {}  # `twistd` calls its observer's factory without arguments
# What Twisted adds of its own to an event, besides all that begins with `log_`.
_TWISTEDS = frozenset(("message", "time", "system", "isError", "format", "failure", "why"))


class LogOptionError(Exception):
    """`str()` is one line."""


def parse_levels(text: str) -> dict[str, str]:
    """`LEVEL` for all, or `NAME=LEVEL`, several with commas: module or package -> level, "" for
    all. Raises LogOptionError.
    """
    found = {}
    for part in text.split(","):
        name, equals, level = part.strip().rpartition("=")
        if level.lower() not in _LEVELS:
            raise LogOptionError(f"--log-level takes one of {', '.join(_LEVELS)}, not {level!r}")
        found[_module(name.strip()) if equals else ""] = level.upper()
    return found


def _module(name: str) -> str:
    """`replog.replication`, as in the lines, is the package `twisted_broker.replication`."""
    if name in _NAMES:
        return _NAMES[name]
    first, dot, rest = name.partition(".")
    module = f"{_PACKAGE}{dot}{rest}" if first in (_SHORT, _PACKAGE) else ""
    try:
        known = bool(module) and find_spec(module) is not None
    except (ImportError, ValueError):
        known = False
    if not known:
        raise LogOptionError(
            f"--log-level: there is no logger {name!r}; take {_SHORT}, or a package of it such as "
            f"{_SHORT}.replication"
        )
    return module


@implementer(ILogObserver)
class JsonLines:
    """Writes each event as a line to `file`."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, event: Mapping[str, Any]) -> None:
        self._file.write(json_line(event) + "\n")
        self._file.flush()


def json_line(event: Mapping[str, Any]) -> str:
    """The event as one line without its end."""
    level = event.get("log_level")
    when = datetime.fromtimestamp(event["log_time"], UTC)
    line: dict[str, Any] = {
        "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": "info" if level is None else level.name,
        "logger": event.get("log_namespace", "-"),
        "text": formatEvent(dict(event)),
    }
    if event.get("log_failure") is not None:
        line["traceback"] = eventAsText(
            dict(event), includeTimestamp=False, includeSystem=False
        ).removeprefix(line["text"])
    for name, value in event.items():
        if not name.startswith("log_") and name not in _TWISTEDS and name not in line:
            line[name] = value if isinstance(value, str | int | float | bool) else str(value)
    return json.dumps(line)


def use_json(twistd: dict[str, Any]) -> None:
    """From now on these options of `twistd` name `json_observer`. Raises LogOptionError."""
    for option in ("logger", "syslog"):
        if twistd.get(option):
            raise LogOptionError(
                f"--log-json contradicts --{option} of twistd: give one of the two"
            )
    twistd["logger"] = f"{__name__}.{json_observer.__name__}"
    _twistd.update(twistd)


def json_observer() -> JsonLines:
    """On the log file that `twistd` was given, or the standard output."""
    name = _twistd.get("logfile") or ""
    if name == "-" or (_twistd.get("nodaemon") and not name):
        return JsonLines(sys.stdout)
    from twisted.python.logfile import LogFile

    file: Any = LogFile.fromFullPath(name or "twistd.log")
    # As `twistd` does with its own file: logrotate's signal.
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        from twisted.internet import reactor

        turns: Any = reactor
        signal.signal(signal.SIGUSR1, lambda number, frame: turns.callFromThread(file.rotate))
    return JsonLines(file)
