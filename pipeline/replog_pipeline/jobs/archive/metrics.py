"""`--metrics-port`: an archive's figures for Prometheus, at http://127.0.0.1:PORT/metrics.

1. It listens on this machine only, as the broker's page does.
2. A scrape reads the figures as they are: no query to a broker, no work of Spark.

Not here: what is counted (`figures`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.archive.figures import Figures

HOST = "127.0.0.1"


class FiguresCollector(Collector):
    """The metrics of one run."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures

    def collect(self) -> Iterator[Metric]:
        now = self.figures
        yield CounterMetricFamily(
            "replog_archive_rows", "Records that this run has committed.", value=now.rows
        )
        bad = CounterMetricFamily(
            "replog_archive_bad_records",
            "Records of committed batches that could not be rows as they are.",
            labels=("reason",),
        )
        for reason, count in now.bad.items():
            bad.add_metric((reason,), count)
        yield bad
        yield SummaryMetricFamily(
            "replog_archive_batch_seconds",
            "Batches that this run has committed, and how long they took.",
            count_value=now.batches,
            sum_value=now.batch_seconds,
        )
        yield GaugeMetricFamily(
            "replog_archive_tables", "Tables that are archived into.", value=now.tables
        )
        yield GaugeMetricFamily(
            "replog_archive_failing_tables",
            "Tables that were refused at the last look.",
            value=now.failing,
        )
        if now.last_commit is not None:
            yield GaugeMetricFamily(
                "replog_archive_last_commit_timestamp_seconds",
                "When the last batch was committed.",
                value=now.last_commit,
            )
        lag = GaugeMetricFamily(
            "replog_archive_lag",
            "Offsets that the source had at the last look and the table had not.",
            labels=("topic", "partition"),
        )
        for (topic, partition), offsets in sorted(now.lag.items()):
            lag.add_metric((topic, str(partition)), offsets)
        yield lag


@contextmanager
def serving(figures: Figures, port: int | None) -> Iterator[str]:
    """The address of the metrics, while the block runs; empty without a port. 0: a free one.

    PipelineError when the port cannot be had.
    """
    if port is None:
        yield ""
        return
    registry = CollectorRegistry()
    registry.register(FiguresCollector(figures))
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        raise PipelineError(
            f"--metrics-port {port}: {os.strerror(error.errno or 0)}: choose another, or 0 for a "
            "free one"
        ) from None
    try:
        yield f"http://{HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
