"""The controller that most tests of this directory talk to."""

from __future__ import annotations

import pytest

from tests.cluster.rig import Rig


@pytest.fixture
def rig() -> Rig:
    """A controller that has started, with no broker yet."""
    return Rig().start()
