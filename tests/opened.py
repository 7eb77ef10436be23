"""Compiled classes that tests patch: one compiled function calls another past Python, so that a
method which a test puts in its place would never be called. A subclass in plain Python is asked
for each of its methods, and takes the place of the class in every module.

Not here: compiled classes that compiled code alone makes (a test gives what they call), and module
functions.
"""

from __future__ import annotations

import sys

from twisted_broker.log.log import Log
from twisted_broker.replication.replica_manager import ReplicaManager
from twisted_broker.turns import Turns


class OpenLog(Log):
    pass


class OpenReplicaManager(ReplicaManager):
    pass


class OpenTurns(Turns):
    pass


def open_compiled_classes() -> None:
    """For a run of compiled code, before tests are imported."""
    opened = {id(cls.__base__): cls for cls in (OpenLog, OpenReplicaManager, OpenTurns)}
    for name, module in list(sys.modules.items()):
        if name.startswith("twisted_broker."):
            for attribute, value in list(vars(module).items()):
                if id(value) in opened:
                    setattr(module, attribute, opened[id(value)])
