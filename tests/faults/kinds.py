"""All kinds of faults: each does its harm and holds it for a while; putting right what is left
of it is the round's business (`Cluster.heal`).
"""

from __future__ import annotations

from tests.faults import cuts, deaths, greed, storms
from tests.faults.scene import KINDS, Scene

__all__ = ["KINDS", "Scene", "cuts", "deaths", "greed", "storms"]
