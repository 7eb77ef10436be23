"""Names of metrics, as three exporters' rules make them of Kafka's MBeans."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from twisted_broker.status.metric_names import Kind, MBean, names
from twisted_broker.status.metric_text import Exposition

BEANS = [
    (
        MBean("server", "BrokerTopicMetrics", "BytesInPerSec", Kind.METER, ("topic",)),
        [
            "kafka_server_brokertopicmetrics_bytesin_total{topic}",
            "kafka_server_brokertopicmetrics_bytesinpersec{topic}",
        ],
    ),
    (
        MBean("log", "Log", "LogEndOffset", Kind.GAUGE, ("topic", "partition")),
        ["kafka_log_log_logendoffset{topic,partition}"],
    ),
    (
        MBean("server", "ReplicaFetcherManager", "MaxLag", Kind.GAUGE, ("clientId",)),
        ["kafka_server_replicafetchermanager_maxlag{clientId,clientid}"],
    ),
    (
        MBean("network", "RequestMetrics", "TotalTimeMs", Kind.HISTOGRAM, ("request",)),
        ["kafka_network_requestmetrics_totaltimems{request}"],
    ),
    (
        MBean("server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent", Kind.IDLE_METER),
        [
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent{}",
            "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate{}",
        ],
    ),
    (
        MBean("network", "SocketServer", "NetworkProcessorAvgIdlePercent", Kind.IDLE_GAUGE),
        [
            "kafka_network_socketserver_networkprocessoravgidlepercent{}",
            "kafka_network_socketserver_networkprocessoravgidle_percent{}",
        ],
    ),
    (
        MBean("server", "raft-metrics", "current-leader", Kind.ATTRIBUTE),
        [
            "kafka_server_raft_metrics_current_leader{}",
            "kafka_server_raftmetrics_current_leader{}",
        ],
    ),
    (
        MBean("server", "raft-channel-metrics", "request-total", Kind.TOTAL),
        [
            "kafka_server_raft_channel_metrics_request_total{}",
            "kafka_server_raftchannelmetrics_request_total{}",
        ],
    ),
    (
        MBean(
            "server",
            "socket-server-metrics",
            "connection-count",
            Kind.ATTRIBUTE,
            ("listener", "networkProcessor"),
        ),
        [
            "kafka_server_socket_server_metrics_connection_count{listener,networkProcessor}",
            "kafka_server_socketservermetrics_connection_count{listener,network_processor}",
        ],
    ),
    (
        MBean("coordinator_group", "GroupMetadataManager", "NumGroups", Kind.GAUGE),
        ["kafka_coordinator_group_groupmetadatamanager_numgroups{}"],
    ),
    (
        MBean("server", "KafkaServer", "linux-disk-read-bytes", Kind.GAUGE),
        ["kafka_server_kafkaserver_linux_disk_read_bytes{}"],
    ),
]


@pytest.mark.parametrize(("bean", "expected"), BEANS, ids=lambda value: getattr(value, "name", ""))
def test_names_are_those_of_the_exporters(bean: MBean, expected: list[str]) -> None:
    """Issue 12: jmx_exporter's sample, Strimzi, Confluent: one table, three sets of rules."""
    assert [f"{name.text}{{{','.join(name.labels)}}}" for name in names(bean)] == expected


def test_what_a_client_chose_stays_in_its_quotes() -> None:
    """Prometheus' own parser reads back what was written, all of a family in one place."""
    out = Exposition()
    bean = MBean("server", "ReplicaFetcherManager", "MaxLag", Kind.GAUGE, ("clientId",))
    hostile = 'a"} 1\nkafka_fake 2\\'
    out.bean(bean, "Lag.", [((hostile,), 3)])
    out.add("other", "gauge", "Other.", (), [((), float("nan"))])
    out.bean(bean, "Lag.", [(("b",), True)])
    out.add("unused", "gauge", "No row.", (), [])
    text = b"".join(out.text()).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert list(families) == ["kafka_server_replicafetchermanager_maxlag", "other"]
    rows = families["kafka_server_replicafetchermanager_maxlag"].samples
    assert [(each.labels["clientId"], each.labels["clientid"], each.value) for each in rows] == [
        (hostile, hostile, 3),
        ("b", "b", 1),
    ]


def test_the_text_comes_in_pieces() -> None:
    """A piece is about as long as was wanted; together they are everything, in order."""
    out = Exposition()
    out.add("n", "gauge", "Numbers.", ("i",), [((number,), number) for number in range(1000)])
    pieces = list(out.text(1000))
    assert max(map(len, pieces)) < 1100
    assert [line.split()[1] for line in b"".join(pieces).decode().splitlines()[2:]] == [
        str(number) for number in range(1000)
    ]
