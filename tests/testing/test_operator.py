"""The simulated operator does what a node's line says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted_broker.cluster.metadata_check import LogEnd
from twisted_broker.simulation.faults.metadata import _Rescue


def test_a_damaged_log_is_no_witness_of_an_older_controller() -> None:
    """How far it went is only a number, which the older controller's log reaches (seed 1120280):
    that is one of the cases that nobody can know.
    """
    for known_end, durable_end, is_witness in ((0, 126, True), (126, 126, False), (126, 127, True)):
        log = SimpleNamespace(
            failed=None, known_end=LogEnd(known_end, -1), _durable_end=durable_end
        )
        server = SimpleNamespace(
            own_log=log, observer=SimpleNamespace(image=SimpleNamespace(offset=176))
        )
        node: Any = SimpleNamespace(broker=SimpleNamespace(broker_server=server))
        rescue: Any = _Rescue.__new__(_Rescue)
        rescue._older_end, rescue._end = 118, 177
        assert rescue._knows_more(node) is is_witness
