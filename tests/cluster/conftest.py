"""The controller that most tests of this directory talk to."""

from __future__ import annotations

import pytest

from tests.cluster.fixtures import Fixture


@pytest.fixture
def fixture() -> Fixture:
    """A controller that has started, with no broker yet."""
    return Fixture().start()
