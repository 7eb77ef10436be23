"""What probes are answered: through a start, a life, a failure and a stop."""

from __future__ import annotations

import json
from errno import EIO
from typing import Any

from twisted.internet.defer import ensureDeferred

from tests.memory_broker import MemoryBroker
from tests.status.looking import Looking
from twisted_broker.interfaces import Health
from twisted_broker.status import health
from twisted_broker.wire.messages import broker_lifecycle


def ready(looking: Looking) -> tuple[int, str]:
    status, headers, body = looking.get("/readyz")
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert body.count("\n") == 1 and body.endswith("\n")
    return status, body.strip()


def live(looking: Looking) -> tuple[int, Any]:
    status, headers, body = looking.get("/healthz")
    assert headers["content-type"] == "application/json"
    return status, json.loads(body)


def test_a_broker_from_its_start_to_its_stop() -> None:
    """It lives all the time, and is ready only while clients are served."""
    broker = MemoryBroker()
    looking = Looking(broker)
    assert ready(looking) == (503, "not ready: its log directories are loaded")
    assert live(looking)[0] == 200
    starting = ensureDeferred(broker.broker.start())
    seen = [broker.broker.health().not_ready]
    while not starting.called:
        broker.step()
        seen.append(broker.broker.health().not_ready)
    assert seen[-1] == "" and all(seen[:-1])
    assert ready(looking) == (200, "ready")
    status, found = live(looking)
    assert status == 200 and found["status"] == "ok" and found["node"] == 1
    assert found["roles"] == ["broker", "controller"] and "why" not in found
    stopping = ensureDeferred(broker.broker.stop())
    assert ready(looking) == (503, "not ready: it is shutting down")
    assert live(looking)[0] == 200, "no reason to kill it"
    broker.run(stopping)
    assert ready(looking)[0] == 503


def test_a_broker_waits_for_its_controller() -> None:
    """Not ready, with what it waits for; ready when the controller comes."""
    first = MemoryBroker(
        process_roles="controller", listeners="CONTROLLER://127.0.0.1:9093", node_id="100"
    )
    second = MemoryBroker(
        world=first,
        process_roles="broker",
        node_id="2",
        listeners="PLAINTEXT://127.0.0.1:9092",
        controller_quorum_bootstrap_servers="127.0.0.1:9093",
        log_dirs="/data2",
    )
    looking = Looking(second)
    starting = ensureDeferred(second.broker.start())
    second.pass_time(3)
    assert ready(looking) == (
        503,
        "not ready: it waits for its controller, which knows the cluster's id",
    )
    first.start()
    second.run(starting)
    assert ready(looking) == (200, "ready")
    assert ready(Looking(first, 8081)) == (200, "ready"), "a controller is, too"


def test_a_fenced_broker_is_not_ready() -> None:
    """As soon as it has heard of it."""
    broker = MemoryBroker().start()
    looking = Looking(broker)
    assert broker.broker.broker_server is not None
    lifecycle = broker.broker.broker_server.lifecycle
    request = broker_lifecycle.BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=lifecycle.broker_epoch,
        current_metadata_offset=10_000,
        want_fence=True,
    )
    assert broker.ask(request, 1, port=9093).is_fenced
    while broker.broker.health().not_ready == "":
        broker.step()
    status, text = ready(looking)
    assert status == 503 and text.startswith("not ready: it is fenced")
    broker.pass_time(3)
    assert ready(looking) == (200, "ready"), "its next heartbeat"


def test_what_cannot_go_on_is_dead() -> None:
    """503 with the reason, for probes that restart it; it is not ready either."""
    broker = MemoryBroker().start()
    looking = Looking(broker)
    directories = broker.broker.log_manager.directories
    directories.fail("/data", OSError(EIO, "Input/output error"))
    status, found = live(looking)
    assert status == 503 and found["status"] == "failed"
    assert "all log directories are offline" in found["why"]
    assert "Input/output error" in found["offline_log_directories"]["/data"]
    assert broker.fatal and ready(looking)[1].startswith("not ready: it stops: all log")


def test_one_failed_directory_of_several_is_named() -> None:
    """The broker serves from the others: a restart would mend nothing."""
    broker = MemoryBroker(log_dirs="/data,/more").start()
    broker.broker.log_manager.directories.fail("/more", OSError(EIO, "Input/output error"))
    looking = Looking(broker)
    status, found = live(looking)
    assert status == 200 and list(found["offline_log_directories"]) == ["/more"]
    assert ready(looking) == (200, "ready")
    assert "log directory /more is offline until a restart" in looking.get("/")[2]


def test_a_reason_is_one_line() -> None:
    """Whatever was in it."""
    status, body = health.ready(Health(1, ("broker",), "two\nlines\r\n", ""))
    assert (status, body) == (503, b"not ready: it stops: two lines\n")
