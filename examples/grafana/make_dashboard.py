"""Makes the dashboard out of a table: `python make_dashboard.py > dashboard.json`."""

from __future__ import annotations

import json
from typing import Any

STAT, GRAPH = "stat", "timeseries"
BYTES, MS, COUNT, SHARE, PER_SECOND = "bytes", "ms", "short", "percentunit", "ops"
TOPIC = '{topic=~"$topic",topic!=""}'
# Whoever coordinates a group need not hold its topics: leaders say where the topics end.
LAG = """sum by (consumergroup, topic) (clamp_min(
  max by (topic, partition) (kafka_topic_partition_current_offset)
  - on (topic, partition) group_right ()
  max by (consumergroup, topic, partition) (kafka_consumergroup_current_offset), 0))"""


def rate(name: str, labels: str = "") -> str:
    """A second, over what the graph can show."""
    return f"rate({name}{labels}[$__rate_interval])"


def times(part: str) -> str:
    """Of the requests that clients and followers wait for."""
    apis = "Produce|FetchConsumer|FetchFollower|Metadata|OffsetCommit"
    return f'kafka_network_requestmetrics_{part}timems{{request=~"{apis}",quantile="0.99"}}'


def controller(name: str) -> str:
    """One node decides, and two jobs may look at it."""
    return f"max(kafka_controller_{name})"


def of_topics(name: str) -> str:
    """Of the topics that are chosen."""
    return f"sum by (topic) ({rate(f'kafka_server_brokertopicmetrics_{name}_total', TOPIC)})"


def groups(state: str) -> str:
    """Of all coordinators."""
    return f"sum(kafka_coordinator_group_groupmetadatamanager_numgroups{state})"


def isrs(change: str) -> str:
    """A second."""
    return f"sum({rate(f'kafka_server_replicamanager_isr{change}_total')})"


REQUESTS = f"sum by (request) ({rate('kafka_network_requestmetrics_requests_total')})"
POOL = "kafka_server_kafkarequesthandlerpool"
PURGATORY = "kafka_server_delayedoperationpurgatory"
# (title, kind, unit, {legend: expression}); eight stats or three graphs fill a line.
PANELS: list[tuple[str, str, str, dict[str, str]]] = [
    ("Active controllers", STAT, COUNT, {"": controller("kafkacontroller_activecontrollercount")}),
    ("Brokers", STAT, COUNT, {"": controller("kafkacontroller_activebrokercount")}),
    ("Fenced brokers", STAT, COUNT, {"": controller("kafkacontroller_fencedbrokercount")}),
    ("Offline partitions", STAT, COUNT, {"": controller("kafkacontroller_offlinepartitionscount")}),
    (
        "Under-replicated",
        STAT,
        COUNT,
        {"": "sum(kafka_server_replicamanager_underreplicatedpartitions)"},
    ),
    (
        "Under min ISR",
        STAT,
        COUNT,
        {"": "sum(kafka_server_replicamanager_underminisrpartitioncount)"},
    ),
    (
        "Unclean elections",
        STAT,
        COUNT,
        {"": controller("controllerstats_uncleanleaderelections_total")},
    ),
    ("Least free disk", STAT, BYTES, {"": "min(replog_log_directory_free_bytes)"}),
    ("Records in", GRAPH, PER_SECOND, {"{{topic}}": of_topics("messagesin")}),
    ("Bytes in", GRAPH, BYTES, {"{{topic}}": of_topics("bytesin")}),
    ("Bytes out", GRAPH, BYTES, {"{{topic}}": of_topics("bytesout")}),
    ("Lag of groups", GRAPH, COUNT, {"{{consumergroup}} {{topic}}": LAG}),
    ("Groups", GRAPH, COUNT, {"all": groups(""), "rebalancing": groups("preparingrebalance")}),
    ("Logs", GRAPH, BYTES, {"{{topic}}": 'sum by (topic) (kafka_log_log_size{topic=~"$topic"})'}),
    ("Requests", GRAPH, PER_SECOND, {"{{request}}": REQUESTS}),
    ("Time of requests, 99 %", GRAPH, MS, {"{{instance}} {{request}}": times("total")}),
    ("of that: waiting in purgatory", GRAPH, MS, {"{{instance}} {{request}}": times("remote")}),
    (
        "Reactor: idle share",
        GRAPH,
        SHARE,
        {"{{instance}}": f"{POOL}_requesthandleravgidle_percent"},
    ),
    (
        "Reactor: slow turns",
        GRAPH,
        PER_SECOND,
        {"{{instance}}": rate("replog_reactor_slow_turn_seconds_count")},
    ),
    (
        "Requests that wait",
        GRAPH,
        COUNT,
        {"{{instance}} {{delayedOperation}}": f"{PURGATORY}_numdelayedoperations"},
    ),
    (
        "Connections",
        GRAPH,
        COUNT,
        {"{{instance}} {{listener}}": "kafka_server_socket_server_metrics_connection_count"},
    ),
    ("ISRs", GRAPH, PER_SECOND, {"shrank": isrs("shrinks"), "grew": isrs("expands")}),
    (
        "Lag of followers",
        GRAPH,
        COUNT,
        {"{{instance}}": "kafka_server_replicafetchermanager_maxlag"},
    ),
    ("Free disk", GRAPH, BYTES, {"{{instance}} {{directory}}": "replog_log_directory_free_bytes"}),
    ("Memory", GRAPH, BYTES, {"{{instance}}": "max by (instance) (process_resident_memory_bytes)"}),
    (
        "Processor",
        GRAPH,
        SHARE,
        {"{{instance}}": f"max by (instance) ({rate('process_cpu_seconds_total')})"},
    ),
]


def panel(number: int, x: int, y: int, row: tuple[str, str, str, dict[str, str]]) -> dict[str, Any]:
    """As Grafana stores it."""
    title, kind, unit, expressions = row
    width, height = (3, 4) if kind == STAT else (8, 8)
    return {
        "id": number,
        "type": kind,
        "title": title,
        "gridPos": {"x": x, "y": y, "w": width, "h": height},
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {"refId": chr(65 + at), "expr": expression, "legendFormat": legend}
            for at, (legend, expression) in enumerate(expressions.items())
        ],
    }


def dashboard() -> dict[str, Any]:
    """The whole of it."""
    panels, x, y = [], 0, 0
    for number, row in enumerate(PANELS, 1):
        made = panel(number, x, y, row)
        panels.append(made)
        x += made["gridPos"]["w"]
        if x >= 24:
            x, y = 0, y + made["gridPos"]["h"]
    choices = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "topic",
            "type": "query",
            "label": "Topic",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": "label_values(kafka_topic_partitions, topic)",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".+",
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "uid": "twisted-broker",
        "title": "twisted-broker",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": choices},
        "panels": panels,
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
