"""What a request needs is loaded before the broker is ready."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from twisted_broker.api.dispatch import BoundRoute
from twisted_broker.api.routes import load_steps, routes_for
for on_controller in (False, True):
    for _ in load_steps(routes_for(on_controller), on_controller):
        pass
before = {*sys.modules}
for on_controller in (False, True):
    for route in routes_for(on_controller).values():
        BoundRoute(route, route.versions(on_controller).max, on_controller).writer()
print(sorted({*sys.modules} - before))
"""


def test_a_request_imports_nothing() -> None:
    """A process without a free descriptor could not: each request would end with a traceback."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
