"""Certificates for tests, made once by what `replog tls make` uses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from twisted_broker.cli.tls import make_certificates

_KEPT: list[TemporaryDirectory[str]] = []  # removed when the process ends


@cache
def made(name: str = "first", hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> Path:
    """A directory with an authority of its own for each `name`."""
    return _directory(name, hosts, datetime.now(UTC))


@cache
def expired() -> Path:
    """As `made`, a day too old."""
    return _directory("expired", ("127.0.0.1",), datetime.now(UTC) - timedelta(days=2))


def _directory(name: str, hosts: tuple[str, ...], now: datetime) -> Path:
    _KEPT.append(TemporaryDirectory(prefix=f"tls-{name}-"))
    path = Path(_KEPT[-1].name)
    make_certificates(path, hosts, "alice", 1, now)
    return path


def settings(directory: Path, own: str = "broker.pem", prefix: str = "") -> dict[str, str]:
    """Of a broker or client that is `own` and trusts the authority there."""
    return {
        f"{prefix}ssl.keystore.type": "PEM",
        f"{prefix}ssl.keystore.location": str(directory / own),
        f"{prefix}ssl.truststore.type": "PEM",
        f"{prefix}ssl.truststore.location": str(directory / "ca.pem"),
    }
