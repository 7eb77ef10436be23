"""The operating system's figures of this process. Ring 2.

Owns prometheus-client's collector of the process, and the time of full garbage collections since
the first scrape.

1. Where the system does not say something (no /proc), the series is not there.
2. Dashboards for Kafka show memory, collections and threads of a JVM. Their panels get the
   nearest figures here, under the names they look for; the help text names the real ones.

Source: Prometheus' client libraries (`process_..`), `jvm_..` of the Java one; Kafka's
`LinuxIoMetricsCollector`. Not here: the reactor's turns (`metrics.py`).
"""

from __future__ import annotations

import gc
import os
import resource
import threading
from functools import cache
from time import perf_counter

from prometheus_client import CollectorRegistry, ProcessCollector

from twisted_broker.status.metric_names import Kind, MBean
from twisted_broker.status.metric_text import Exposition

_FULL = 2
_DISK = (("linux-disk-read-bytes", "read_bytes"), ("linux-disk-write-bytes", "write_bytes"))


class FullCollections:
    """Counts and times them from its making on."""

    def __init__(self) -> None:
        self.count, self.seconds, self._began = 0, 0.0, 0.0
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._began = perf_counter()
        elif self._began:
            self.count += 1
            self.seconds += perf_counter() - self._began


@cache
def _full_collections() -> FullCollections:
    """One for the process, however many nodes it has."""
    return FullCollections()


def process_figures(out: Exposition) -> None:
    """All of it."""
    resident = 0.0
    for metric in ProcessCollector(registry=CollectorRegistry()).collect():
        for sample in metric.samples:
            out.add(sample.name, metric.type, metric.documentation, (), [((), sample.value)])
            if sample.name == "process_resident_memory_bytes":
                resident = sample.value
    for name, number in _disk_bytes():
        out.bean(
            MBean("server", "KafkaServer", name, Kind.GAUGE),
            "Bytes of this process that went to or came from a disk.",
            [((), number)],
        )
    _instead_of_a_jvm(out, resident, _full_collections())


def _disk_bytes() -> list[tuple[str, int]]:
    try:
        with open("/proc/self/io", encoding="ascii") as lines:
            found = dict(line.split(": ") for line in lines)
        return [(name, int(found[field])) for name, field in _DISK]
    except (OSError, ValueError, KeyError):
        return []


def _instead_of_a_jvm(out: Exposition, resident: float, collections: FullCollections) -> None:
    out.add(
        "jvm_threads_current",
        "gauge",
        "Threads of this process (there is no JVM).",
        (),
        [((), threading.active_count())],
    )
    heap = [(("heap",), resident)] if resident else []
    out.add(
        "jvm_memory_used_bytes",
        "gauge",
        "Resident memory of this process (there is no JVM).",
        ("area",),
        heap,
    )
    out.add(
        "jvm_memory_bytes_max",
        "gauge",
        "The memory that this process may use: its limit, or the machine's (there is no JVM).",
        ("area",),
        [(("heap",), _most_memory())],
    )
    family = out.family(
        "jvm_gc_collection_seconds",
        "summary",
        "Full collections of Python's garbage collector since the first scrape (there is no JVM).",
    )
    family.add('{gc="full"}', collections.count, "_count")
    family.add('{gc="full"}', collections.seconds, "_sum")


def _most_memory() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return machine if limit == resource.RLIM_INFINITY else min(limit, machine)
