"""A pytest plugin: the tests run with a mistake in the production code.

`REPLOG_MUTATION=NAME python -m pytest -p tests.simulation.planted TEST`. A run in which the
mistaken function was never called is an error of usage (exit status 4), not a caught mistake.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from tests.simulation.mutations import planted

_stack = ExitStack()
_planting = _stack.enter_context(planted(os.environ["REPLOG_MUTATION"]))


def pytest_sessionfinish(session: pytest.Session) -> None:
    _stack.close()
    if not all(_planting.ran.values()):
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
