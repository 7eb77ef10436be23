"""A Kafka broker as a Python package: wire, log, replication, cluster and coordinators on
Twisted. See docs/ARCHITECTURE.md.

Public, documented and stable: `Broker` and `StartError`, for a program that wants a broker inside,
`__version__`, and what `twisted_broker.consumer` names. Every other name, in every module of this
package, is not: it may change in any version. Stable besides are the command lines
`twistd replog` and `replog`, and the run file.
"""

# Not typing's, which would be imported: type checkers take the name for true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from twisted_broker.embedded import Broker as Broker
    from twisted_broker.embedded import StartError as StartError

__all__ = ["Broker", "StartError", "__version__"]

# The version: setup.cfg reads it from this file's text, so it must stay a literal,
# and nothing is imported here: `Broker` is with its first use. The extras' requirements and
# pipeline/setup.cfg repeat it; tests/test_distributions.py holds them together.
__version__ = "0.1.0"


def __getattr__(name: str) -> "Any":
    if name in ("Broker", "StartError"):
        from twisted_broker import embedded

        found = globals()[name] = getattr(embedded, name)  # the next use is an ordinary one
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
