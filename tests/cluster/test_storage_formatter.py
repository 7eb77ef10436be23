"""`replog format`: what it leaves when it is killed, and the power goes later."""

from __future__ import annotations

from random import Random

import pytest

from twisted_broker.cluster.storage_formatter import Node, format_node, levels_of
from twisted_broker.log.meta_properties import read_meta_properties
from twisted_broker.simulation.disk import SimDisk
from twisted_broker.simulation.disk_faults import Crash

PATHS = ("/srv/metadata", "/srv/data/1")


def formatted(disk: SimDisk) -> str:
    """Formats what is not formatted yet; the cluster's id."""
    node = Node(1, None, PATHS, PATHS[0], levels_of(30))
    return format_node(disk, node, Random(1), 0, ignore_formatted=True).cluster_id


def test_a_kill_and_a_loss_of_power_later() -> None:
    """Wherever the kill comes: what the next run finds, it makes durable."""
    whole = SimDisk(1)
    formatted(whole)
    for at in range(whole.operations):
        killed = SimDisk(at, crash_at=at)
        with pytest.raises(Crash):
            formatted(killed)
        disk = killed.after_kill()
        cluster_id = formatted(disk)
        left = disk.after_power_loss(keep=0)
        for path in PATHS:
            found = read_meta_properties(left, path)
            assert found is not None and found.cluster_id == cluster_id, (at, path)
