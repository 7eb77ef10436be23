"""Whether a node lives, and whether it is ready to serve: what probes are answered.

Owns the bodies of `/healthz` and `/readyz`.

1. A node lives as long as its reactor turns and it can go on: when it cannot, a restart may help. A
   log directory that failed beside others is named, and no end of life: a restart mends no disk.
2. A broker is ready from the moment on when clients are let in, until its stop begins, while it is
   not fenced. A controller that is away makes no broker unready: records are served without it.

Ring 1. Source: our own; Kubernetes' probes. Not here: the facts (`kafka_server.py`), HTTP
(`http_resources.py`).
"""

from __future__ import annotations

import json

from twisted_broker import __version__
from twisted_broker.interfaces import Health


def live(health: Health) -> tuple[int, bytes]:
    """Status and body (JSON) of `/healthz`."""
    body: dict[str, object] = {
        "status": "failed" if health.fatal else "ok",
        "node": health.node_id,
        "roles": health.roles,
        "version": __version__,
    }
    if health.fatal:
        body["why"] = health.fatal
    if health.offline_directories:
        body["offline_log_directories"] = dict(health.offline_directories)
    return 503 if health.fatal else 200, json.dumps(body).encode() + b"\n"


def ready(health: Health) -> tuple[int, bytes]:
    """Status and body (one line) of `/readyz`."""
    why = f"it stops: {health.fatal}" if health.fatal else health.not_ready
    if not why:
        return 200, b"ready\n"
    return 503, f"not ready: {' '.join(why.split())}\n".encode()
