"""A cluster that is handed out has groups without members, of every kind."""

from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import ensureDeferred

from tests.coordinator.test_share_groups import Run
from twisted_broker.testing import handed_out


def test_members_of_share_groups_leave_too():
    run = Run()
    run.joined()
    restoring: Any = object.__new__(handed_out.Raised)
    restoring._servers = [SimpleNamespace(groups=run.coordinator)]
    done: list[None] = []
    ensureDeferred(restoring._remove_members()).addCallback(done.append)
    run.settle()
    assert done == [None]
    assert run.group() is not None and not run.group().members
