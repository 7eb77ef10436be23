"""Which systems this runs on.

1. Where it cannot run (Windows), one line says so, before a missing module of the system does.

Source: our own. Not here: what differs between the systems that it runs on (`log/filesystem.py`,
`net/transport.py`, `tap.py`).
"""

from __future__ import annotations

from importlib import import_module

_ON_EVERY_POSIX = ("fcntl", "resource")


def check_system() -> None:
    """Raises SystemExit with one line where files cannot be locked as a broker needs it."""
    try:
        for name in _ON_EVERY_POSIX:
            import_module(name)
    except ImportError:
        raise SystemExit(
            "replog: this runs on Linux, macOS and other POSIX systems; on Windows run it in WSL 2"
        ) from None
