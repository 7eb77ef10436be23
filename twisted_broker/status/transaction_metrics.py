"""Metrics of transactions: the loads and markers of this broker's coordinator, and what its
partitions ask coordinators. Ring 0 (pure: docs/ARCHITECTURE.md 3).

Owns Kafka's MBeans `TransactionMarkerChannelManager`, `transaction-coordinator-metrics` and
`AddPartitionsToTxnManager`.

1. Quantiles are of the last answers that the manager keeps. Times of loads are of the last
   `LOADS_OF_MS`, and left out where nothing was loaded.

Source: Kafka's MBeans; KIP-890. Not here: late transactions (`partition_metrics.py`).
"""

from __future__ import annotations

from typing import Any

from twisted_broker.status.metric_names import Kind, MBean
from twisted_broker.status.metric_text import Exposition

LOADS_OF_MS = 30_000
_QUANTILES = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")


def coordinator(out: Exposition, transactions: Any, now_ms: float) -> None:
    """Of the ids that this broker coordinates."""
    for name, doc, number in (
        (
            "UnknownDestinationQueueSize",
            "Markers that wait for a leader of their partitions, by transaction.",
            transactions.markers.leaderless,
        ),
        (
            "LogAppendRetryQueueSize",
            "Ends of transactions that are to be appended once more.",
            transactions.retrying,
        ),
    ):
        kind = "TransactionMarkerChannelManager"
        bean = MBean("coordinator_transaction", kind, name, Kind.GAUGE)
        out.bean(bean, doc, [((), number)])
    took = [ms for at_ms, ms in transactions.states.load_times if now_ms - at_ms <= LOADS_OF_MS]
    if took:
        for name, doc, milliseconds in (
            ("partition-load-time-max", "The longest load of a partition, in ms.", max(took)),
            ("partition-load-time-avg", "Loads of partitions, in ms.", sum(took) / len(took)),
        ):
            bean = MBean("server", "transaction-coordinator-metrics", name, Kind.ATTRIBUTE)
            out.bean(bean, f"{doc} Of the last 30 s.", [((), round(milliseconds, 3))])


def verification(out: Exposition, manager: Any) -> None:
    """Of the questions to coordinators before an append."""
    # A meter whose name has no `PerSec`: all exporters give its count this name.
    out.add(
        "kafka_server_addpartitionstotxnmanager_verificationfailurerate_count",
        "counter",
        "Partitions that were not verified or added.",
        (),
        [((), manager.failures)],
    )
    bean = MBean("server", "AddPartitionsToTxnManager", "VerificationTimeMs", Kind.HISTOGRAM)
    (family,) = [
        family for family, _, _ in out.of(bean, "Time until a coordinator's answer, in ms.")
    ]
    kept = sorted(manager.times_ms)
    for quantile in _QUANTILES if kept else ():
        place = min(int(float(quantile) * len(kept)), len(kept) - 1)
        family.add(f'{{quantile="{quantile}"}}', round(kept[place], 4))
    family.add("", manager.answers, "_count")
    family.add("", round(manager.total_ms, 4), "_sum")
