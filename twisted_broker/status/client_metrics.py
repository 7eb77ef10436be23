"""The metrics that clients pushed, and this broker's counts of those pushes (KIP-714).
Ring 0 (pure: docs/ARCHITECTURE.md 3).

1. A client's metric is `client_` with its own name, dots as underscores; labels: the client's id,
   its software, and the attributes of the value. Neither its instance id nor its address is shown.
2. Clients of the same labels are one series: sums are added up, of gauges the one of the client
   that was heard last is shown.
3. A name has one type in a scrape; who says that it is of the other one is left out.
4. Broker's counters are Kafka's group `client-metrics`, over all instances; a label for each would
   be one that clients make up.

Source: GN 5.10, 5.11; Kafka's `ClientMetricsManager`. Not here: what is kept, and its bounds
(`telemetry/instances.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted_broker.status.metric_names import Kind, MBean
from twisted_broker.status.metric_text import Exposition, labels_text
from twisted_broker.telemetry.instances import LABELS, ClientInstances, Series

_PER_PIECE = 100


def client_metrics(out: Exposition, telemetry: ClientInstances, now_ms: float) -> Iterator[None]:
    """Pauses after each piece."""
    telemetry.expire(now_ms)
    for name, kind, doc, number in (
        ("instance-count", Kind.ATTRIBUTE, "Clients that push metrics.", len(telemetry)),
        (
            "unknown-subscription-request-count",
            Kind.TOTAL,
            "Pushes that did not fit their client's subscription.",
            telemetry.unknown_subscriptions,
        ),
        ("throttle-count", Kind.TOTAL, "Requests that came too early.", telemetry.throttled),
        ("plugin-export-count", Kind.TOTAL, "Pushes that were taken.", telemetry.exported),
        ("plugin-error-count", Kind.TOTAL, "Pushes that could not be read.", telemetry.failed),
    ):
        out.bean(MBean("server", "client-metrics", name, kind), doc, [((), number)])
    for name, kind_of, doc, value in (
        (
            "replog_client_metrics_export_seconds_total",
            "counter",
            "Time until pushes were read.",
            telemetry.export_seconds,
        ),
        (
            "replog_client_metrics_left_out_total",
            "counter",
            "Values of clients that found no room; one where it is not known how many.",
            telemetry.left_out,
        ),
        (
            "replog_client_metrics_series",
            "gauge",
            "Series that clients pushed.",
            telemetry.series_in_all,
        ),
    ):
        out.add(name, kind_of, doc, (), [((), value)])
    yield
    found: dict[tuple[tuple[str, ...], Series], float] = {}
    for client, rows in telemetry.values():
        for number, (series, value) in enumerate(rows):
            key = client, series
            found[key] = value + found.get(key, 0) if series.is_counter else value
            if number % _PER_PIECE == _PER_PIECE - 1:
                yield
        yield
    types: dict[str, bool] = {}
    for number, ((client, series), value) in enumerate(found.items()):
        if types.setdefault(series.name, series.is_counter) == series.is_counter:
            names = LABELS + tuple(name for name, _ in series.labels)
            values = client + tuple(text for _, text in series.labels)
            out.family(series.name, _type(series), "Pushed by clients.").add(
                labels_text(names, values), value
            )
        if number % _PER_PIECE == _PER_PIECE - 1:
            yield


def _type(series: Series) -> str:
    """A counter's name ends so: readers of the newer format would add the end themselves."""
    if not series.is_counter:
        return "gauge"
    return "counter" if series.name.endswith("_total") else "untyped"
