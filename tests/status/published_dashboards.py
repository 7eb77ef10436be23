"""What published Grafana dashboards for Kafka look for, and whether a scrape has it.

Facts out of public repositories, as of 2026: which series each expression reads. One line for each
different expression of a dashboard, its selectors one behind the other; labels that Prometheus
itself adds to a target (job, env, instance, namespace ..) are left out, and a variable of the
dashboard is `.+`. What is around the selectors (sums, rates) needs nothing of the broker.

Sources: confluentinc/jmx-monitoring-stacks (jmxexporter-prometheus-grafana: KRaft's dashboards),
strimzi/strimzi-kafka-operator (examples/metrics/grafana-dashboards), danielqsj/kafka_exporter
(kafka_exporter_overview.json). jmx_exporter has no dashboard; its sample's names are Strimzi's.
"""

from __future__ import annotations

import math
import re

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

OF_OTHERS = {
    "container_": "cAdvisor's, of a container",
    "kubelet_": "Kubernetes'",
    "kafka_tier_": "tiered storage of Confluent Server",
    "kafka_log_log_tiersize": "tiered storage of Confluent Server",
    "kafka_server_replicamanager_stray": "Confluent Server's",
}
"""Series that no Kafka broker has: other programs serve them, or Confluent's own server."""

Scrapes = list[dict[str, list[Sample]]]
_SELECTOR = re.compile(r"(\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def samples_of(text: str) -> dict[str, list[Sample]]:
    """The samples of a scrape by name, read by Prometheus' own parser."""
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def _matches(sample: Sample, matchers: list[tuple[str, str, str]]) -> bool:
    for label, sign, wanted in matchers:
        value = sample.labels.get(label, "")
        is_equal = re.fullmatch(wanted, value) is not None if "~" in sign else value == wanted
        if is_equal != (sign in ("=", "=~")):
            return False
    return True


def has_value(expression: str, scrapes: Scrapes) -> bool:
    """Whether each of its selectors finds a number in one of the scrapes."""
    return all(
        any(
            _matches(sample, _MATCHER.findall(matchers)) and not math.isnan(sample.value)
            for scrape in scrapes
            for sample in scrape.get(name, ())
        )
        for name, matchers in _SELECTOR.findall(expression)
    )


def expressions(dashboard: str) -> list[str]:
    """Those that are about a Kafka broker."""
    return [
        line
        for line in DASHBOARDS[dashboard].strip().splitlines()
        if not line.startswith(tuple(OF_OTHERS))
    ]


DASHBOARDS = {
    "confluent kafka-cluster-kraft": r"""
kafka_controller_kafkacontroller_activecontrollercount
kafka_server_replicamanager_leadercount
kafka_server_replicamanager_partitioncount
kafka_controller_kafkacontroller_preferredreplicaimbalancecount
kafka_controller_controllerstats_uncleanleaderelectionspersec
kafka_server_replicamanager_underreplicatedpartitions
kafka_cluster_partition_underminisr
kafka_controller_kafkacontroller_offlinepartitionscount
kafka_server_replicamanager_straypartitionscount
kafka_server_replicamanager_straypartitionsmisclassifiedcount
kafka_server_brokertopicmetrics_bytesinpersec{topic!=""}
kafka_server_brokertopicmetrics_bytesoutpersec{topic!=""}
kafka_server_replicamanager_leadercount
kafka_server_replicamanager_straypartitionstotalsize
kafka_network_requestmetrics_requestspersec
kafka_network_requestmetrics_requestspersec{request="Produce"}
kafka_network_requestmetrics_requestspersec{request="FetchConsumer"}
kafka_network_requestmetrics_errorspersec{error!="NONE"}
kafka_network_requestmetrics_requestspersec{request="Fetch"}
kafka_network_requestmetrics_requestspersec{request="OffsetCommit"}
kafka_network_requestmetrics_requestspersec{request="Metadata"}
process_cpu_seconds_total
jvm_memory_used_bytes
jvm_memory_bytes_max{area="heap"}
jvm_gc_collection_seconds_sum
kafka_server_kafkaserver_linux_disk_read_bytes
kafka_server_kafkaserver_linux_disk_write_bytes
kafka_server_brokertopicmetrics_messagesinpersec{topic!=""}
kafka_server_brokertopicmetrics_bytesinpersec{topic!=""}
kafka_server_brokertopicmetrics_bytesoutpersec{topic!=""}
kafka_server_brokertopicmetrics_messagesinpersec{topic!=""}
kafka_server_brokertopicmetrics_bytesoutpersec{topic!=""}
kafka_network_requestchannel_requestqueuesize
kafka_network_requestchannel_responsequeuesize
kafka_network_socketserver_networkprocessoravgidlepercent
kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_oneminuterate
kafka_server_replicamanager_isrshrinkspersec
kafka_server_replicamanager_isrexpandspersec
kafka_log_log_size
kafka_log_log_size
kafka_network_requestmetrics_requestqueuetimems{quantile=~".+",request="Produce"}
kafka_network_requestmetrics_localtimems{quantile=~".+",request="Produce"}
kafka_network_requestmetrics_remotetimems{quantile=~".+",request="Produce"}
kafka_network_requestmetrics_responsequeuetimems{quantile=~".+",request="Produce"}
kafka_network_requestmetrics_responsesendtimems{quantile=~".+",request="Produce"}
kafka_network_requestmetrics_requestqueuetimems{quantile=~".+",request="Fetch"}
kafka_network_requestmetrics_localtimems{quantile=~".+",request="Fetch"}
kafka_network_requestmetrics_remotetimems{quantile=~".+",request="Fetch"}
kafka_network_requestmetrics_responsequeuetimems{quantile=~".+",request="Fetch"}
kafka_network_requestmetrics_responsesendtimems{quantile=~".+",request="Fetch"}
kafka_network_requestmetrics_requestqueuetimems{quantile=~".+",request="FetchFollower"}
kafka_network_requestmetrics_localtimems{quantile=~".+",request="FetchFollower"}
kafka_network_requestmetrics_remotetimems{quantile=~".+",request="FetchFollower"}
kafka_network_requestmetrics_responsequeuetimems{quantile=~".+",request="FetchFollower"}
kafka_network_requestmetrics_responsesendtimems{quantile=~".+",request="FetchFollower"}
kafka_server_fetchsessioncache_numincrementalfetchsessions
kafka_server_fetchsessioncache_incrementalfetchsessionevictionspersec
kafka_network_requestmetrics_requestqueuetimems{quantile=~".+",request="Metadata"}
kafka_network_requestmetrics_totaltimems{quantile=~".+",request="Metadata"}
kafka_server_replicafetchermanager_minfetchrate{clientid="Replica"}
kafka_server_replicafetchermanager_maxlag{clientid="Replica"}
kafka_server_socketservermetrics_connection_count
kafka_server_socketservermetrics_connection_count
kafka_server_socketservermetrics_connection_creation_rate
kafka_server_socketservermetrics_connection_creation_rate
kafka_server_socketservermetrics_connection_close_rate
kafka_server_socketservermetrics_connection_close_rate
kafka_network_acceptor_acceptorblockedpercent
kafka_server_socketservermetrics_connections
kafka_coordinator_group_groupmetadatamanager_numgroups
kafka_coordinator_group_groupmetadatamanager_numgroupsstable
kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance
kafka_coordinator_group_groupmetadatamanager_numgroupsdead
kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance
kafka_coordinator_group_groupmetadatamanager_numgroupsempty
kafka_server_brokertopicmetrics_producemessageconversionspersec
kafka_server_brokertopicmetrics_fetchmessageconversionspersec
kafka_log_log_tiersize
kafka_tier_tasks_archive_tierarchiver_bytespersec
kafka_tier_tasks_archive_tierarchiver_retriespersec
kafka_tier_tasks_archive_tierarchiver_totallag
kafka_tier_tasks_tiertasks_numpartitionsinerror
kafka_log_log_tiersize
kafka_log_log_size
""",
    "confluent kafka-topics-kraft": r"""
kafka_controller_kafkacontroller_globaltopiccount
kafka_server_brokertopicmetrics_messagesinpersec{topic=~".+"}
kafka_log_log_size{topic=~".+"}
kafka_controller_kafkacontroller_globalpartitioncount
kafka_server_brokertopicmetrics_bytesinpersec{topic=~".+"}
kafka_server_brokertopicmetrics_bytesoutpersec{topic=~".+"}
kafka_server_brokertopicmetrics_totalproducerequestspersec{topic=~".+"}
kafka_server_brokertopicmetrics_totalfetchrequestspersec{topic=~".+"}
kafka_log_log_logstartoffset{topic=~".+"}
kafka_log_log_logendoffset{topic=~".+"}
kafka_log_log_logendoffset{topic=~".+"} kafka_log_log_logstartoffset{topic=~".+"}
kafka_log_log_tiersize{topic=~".+"}
kafka_log_log_tiersize{topic=~".+"}
kafka_log_log_size{topic=~".+"}
""",
    "confluent kraft": r"""
kafka_server_raft_metrics_high_watermark
kafka_controller_kafkacontroller_activebrokercount
kafka_controller_kafkacontroller_fencedbrokercount
kafka_controller_kafkacontroller_activebrokercount
kafka_server_raft_metrics_current_leader
kafka_server_raft_metrics_current_epoch
kafka_controller_kafkacontroller_metadataerrorcount
kafka_controller_kafkacontroller_lastappliedrecordlagms
kafka_server_raft_metrics_election_latency_max
kafka_server_raft_metrics_append_records_rate
kafka_server_raft_metrics_commit_latency_avg
kafka_server_raft_metrics_fetch_records_rate
kafka_controller_controllereventmanager_eventqueuetimems
kafka_controller_controllereventmanager_eventqueueprocessingtimems
process_cpu_seconds_total
jvm_memory_used_bytes
jvm_memory_bytes_max{area="heap"}
jvm_gc_collection_seconds_sum
""",
    "strimzi strimzi-kafka": r"""
kafka_server_replicamanager_leadercount
kafka_controller_kafkacontroller_activecontrollercount
kafka_controller_controllerstats_uncleanleaderelections_total
kafka_server_replicamanager_partitioncount
kafka_server_replicamanager_underreplicatedpartitions
kafka_cluster_partition_atminisr
kafka_cluster_partition_underminisr
kafka_controller_kafkacontroller_offlinepartitionscount
container_memory_usage_bytes
container_cpu_usage_seconds_total
kubelet_volume_stats_available_bytes
process_open_fds
jvm_memory_used_bytes
jvm_gc_collection_seconds_sum
jvm_gc_collection_seconds_count
jvm_threads_current
kafka_server_brokertopicmetrics_bytesin_total{topic=~".+",topic!=""}
kafka_server_brokertopicmetrics_bytesout_total{topic=~".+",topic!=""}
kafka_server_brokertopicmetrics_messagesin_total{topic=~".+",topic!=""}
kafka_server_brokertopicmetrics_totalproducerequests_total{topic=~".+",topic!=""}
kafka_server_brokertopicmetrics_failedproducerequests_total{topic=~".+",topic!=""}
kafka_server_brokertopicmetrics_totalfetchrequests_total{topic=~".+",topic!=""}
kafka_server_brokertopicmetrics_failedfetchrequests_total{topic=~".+",topic!=""}
kafka_network_socketserver_networkprocessoravgidle_percent
kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent
kafka_server_kafkaserver_linux_disk_write_bytes
kafka_server_kafkaserver_linux_disk_read_bytes
kafka_server_socket_server_metrics_connection_count
kafka_log_log_size{topic=~".+",partition=~".+"}
""",
    "strimzi strimzi-kraft": r"""
container_memory_usage_bytes
container_cpu_usage_seconds_total
kubelet_volume_stats_available_bytes
process_open_fds
jvm_memory_used_bytes
jvm_gc_collection_seconds_sum
jvm_gc_collection_seconds_count
jvm_threads_current
kafka_server_raftmetrics_append_records_rate
kafka_server_raftmetrics_fetch_records_rate
kafka_server_raftmetrics_commit_latency_avg
kafka_server_raftmetrics_current_state
kafka_server_raftmetrics_current_leader
kafka_server_raftmetrics_current_vote
kafka_server_raftmetrics_current_epoch
kafka_server_raftchannelmetrics_incoming_byte_total
kafka_server_raftchannelmetrics_outgoing_byte_total
kafka_server_raftchannelmetrics_request_total
kafka_server_raftchannelmetrics_response_total
kafka_server_raftmetrics_high_watermark
kafka_server_raftmetrics_log_end_offset
""",
    "strimzi strimzi-kafka-exporter": r"""
kafka_topic_partitions{topic=~".+"}
kafka_topic_partitions{topic=~".+"}
kafka_topic_partition_replicas{topic=~".+"}
kafka_topic_partition_in_sync_replica{topic=~".+"}
kafka_topic_partition_under_replicated_partition{topic=~".+"}
kafka_cluster_partition_atminisr{topic=~".+"}
kafka_cluster_partition_underminisr{topic=~".+"}
kafka_topic_partition_leader_is_preferred{topic=~".+"}
kafka_topic_partition_current_offset{topic=~".+"}
kafka_consumergroup_current_offset{consumergroup=~".+",topic=~".+"}
kafka_consumergroup_lag{consumergroup=~".+",topic=~".+"}
kafka_consumergroup_current_offset{consumergroup=~".+",topic=~".+"}
kafka_consumergroup_lag{consumergroup=~".+",topic=~".+"}
kafka_topic_partitions{topic=~".+"}
kafka_topic_partition_current_offset{topic=~".+"}
kafka_topic_partition_oldest_offset{topic=~".+"}
""",
    "kafka_exporter overview": r"""
kafka_topic_partition_current_offset{topic=~".+"}
kafka_consumergroup_lag{topic=~".+"}
kafka_topic_partition_current_offset{topic=~".+"}
kafka_consumergroup_current_offset{topic=~".+"}
kafka_topic_partitions{topic=~".+"}
""",
}
