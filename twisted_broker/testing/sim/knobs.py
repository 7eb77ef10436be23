"""Limits of the production code that a minute of simulated load does not reach, made small.

Owns `KNOBS`, and `turned`, a context in which some have other values, in this process only.

1. A knob is a limit above which the same is done in another way: any value is a right one.

Source: FoundationDB's knobs. Not here: settings (`testing/sim/workload.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from twisted_broker.cluster import metadata_log, metadata_store
from twisted_broker.log import producer_rebuild

KNOBS: dict[str, tuple[ModuleType, tuple[int, ...]]] = {
    "AT_ONCE_BYTES": (producer_rebuild, (0, 300)),
    "READ_BYTES": (metadata_store, (1, 2000)),
    "RECORDS_PER_BATCH": (metadata_log, (2, 5)),
}
"""The name of a limit -> its module, and values to draw from."""


@contextmanager
def turned(values: Mapping[str, int]) -> Iterator[None]:
    """Within it these knobs have these values."""
    before = {name: getattr(KNOBS[name][0], name) for name in values}
    try:
        for name, value in values.items():
            setattr(KNOBS[name][0], name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(KNOBS[name][0], name, value)
