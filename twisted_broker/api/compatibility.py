"""Writes `docs/COMPATIBILITY.md`: `python -m twisted_broker.api.compatibility >
docs/COMPATIBILITY.md`.

1. What is served comes from `routes.ROUTES` alone; what Apache Kafka serves is the table below, so
   that the difference shows.
2. A test holds the file in the repository to what this writes.

Source of `KAFKA`: the message definitions of Apache Kafka 4.3.1 (stable versions; B: broker, C:
controller).
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted_broker.api.routes import ROUTES, Route
from twisted_broker.wire.schema import VersionRange, version_range

KAFKA = """
0 Produce 3-13 B
1 Fetch 4-18 BC
2 ListOffsets 1-11 B
3 Metadata 0-13 B
8 OffsetCommit 2-10 B
9 OffsetFetch 1-10 B
10 FindCoordinator 0-6 B
11 JoinGroup 0-9 B
12 Heartbeat 0-4 B
13 LeaveGroup 0-5 B
14 SyncGroup 0-5 B
15 DescribeGroups 0-6 B
16 ListGroups 0-5 B
17 SaslHandshake 0-1 BC
18 ApiVersions 0-4 BC
19 CreateTopics 2-7 BC
20 DeleteTopics 1-6 BC
21 DeleteRecords 0-2 B
22 InitProducerId 0-5 B
23 OffsetForLeaderEpoch 2-4 B
24 AddPartitionsToTxn 0-5 B
25 AddOffsetsToTxn 0-4 B
26 EndTxn 0-5 B
27 WriteTxnMarkers 1-2 B
28 TxnOffsetCommit 0-5 B
29 DescribeAcls 1-3 BC
30 CreateAcls 1-3 BC
31 DeleteAcls 1-3 BC
32 DescribeConfigs 1-4 BC
33 AlterConfigs 0-2 BC
34 AlterReplicaLogDirs 1-2 B
35 DescribeLogDirs 1-5 B
36 SaslAuthenticate 0-2 BC
37 CreatePartitions 0-3 BC
38 CreateDelegationToken 1-3 BC
39 RenewDelegationToken 1-2 BC
40 ExpireDelegationToken 1-2 BC
41 DescribeDelegationToken 1-3 BC
42 DeleteGroups 0-2 B
43 ElectLeaders 0-2 BC
44 IncrementalAlterConfigs 0-1 BC
45 AlterPartitionReassignments 0-1 BC
46 ListPartitionReassignments 0 BC
47 OffsetDelete 0 B
48 DescribeClientQuotas 0-1 B
49 AlterClientQuotas 0-1 BC
50 DescribeUserScramCredentials 0 BC
51 AlterUserScramCredentials 0 BC
52 Vote 0-2 C
53 BeginQuorumEpoch 0-1 C
54 EndQuorumEpoch 0-1 C
55 DescribeQuorum 0-2 BC
56 AlterPartition 2-3 C
57 UpdateFeatures 0-2 BC
58 Envelope 0 C
59 FetchSnapshot 0-1 C
60 DescribeCluster 0-2 BC
61 DescribeProducers 0 B
62 BrokerRegistration 0-4 C
63 BrokerHeartbeat 0-2 C
64 UnregisterBroker 0 BC
65 DescribeTransactions 0 B
66 ListTransactions 0-2 B
67 AllocateProducerIds 0 C
68 ConsumerGroupHeartbeat 0-1 B
69 ConsumerGroupDescribe 0-1 B
70 ControllerRegistration 0 C
71 GetTelemetrySubscriptions 0 B
72 PushTelemetry 0 B
73 AssignReplicasToDirs 0 C
74 ListConfigResources 0-1 B
75 DescribeTopicPartitions 0 B
76 ShareGroupHeartbeat 1 B
77 ShareGroupDescribe 1 B
78 ShareFetch 1-2 B
79 ShareAcknowledge 1-2 B
80 AddRaftVoter 0-1 BC
81 RemoveRaftVoter 0 BC
82 UpdateRaftVoter 0 C
83 InitializeShareGroupState 0 B
84 ReadShareGroupState 0 B
85 WriteShareGroupState 0-1 B
86 DeleteShareGroupState 0 B
87 ReadShareGroupStateSummary 0-1 B
88 StreamsGroupHeartbeat 0 B
89 StreamsGroupDescribe 0 B
90 DescribeShareGroupOffsets 0-1 B
91 AlterShareGroupOffsets 0 B
92 DeleteShareGroupOffsets 0 B
"""

INTRODUCTION = """# Compatibility

Made by `make docs` from the table of APIs in `twisted_broker/api/routes.py`; do not edit.

What is not in the table is not served and not advertised: a client that asks ApiVersions first, as all do, never meets it.
"""

BEHAVIOUR = """
## Where behaviour differs from Apache Kafka 4.3.1

- **Old clients**: message sets of magic 0 and 1 are taken by Produce 0-2 and given by Fetch 0-3 (Kafka dropped them in 4.0). What they write is
  stored as batches of magic 2. Records compressed with zstd cannot be given to them.
- **Records inside a batch** are looked at where something depends on them: compacted topics (a key is needed), conversion, recompression (the topic's
  `compression.type` is another than the producer's), bounded times (the topic sets `message.timestamp.before.max.ms`, or the header's base or
  largest time is out of bounds). Otherwise a batch is checked by its header, its CRC and its count, and stored as it came: a largest time that
  hides a later record passes. `replog.validate.records=true` checks every record of every batch. A compressed batch that claims more records than it has bytes is inflated and
  its records are counted, up to 65,536 of them and 8 MiB; more is MESSAGE_TOO_LARGE, at which producers split the batch.
- **LogAppendTime** claimed by a producer is INVALID_TIMESTAMP on every topic; Kafka lets it pass on CreateTime topics and clears the mark.
- **A timeout of 0** in CreateTopics, DeleteTopics and CreatePartitions: the work is done and answered. Kafka answers REQUEST_TIMED_OUT and does
  nothing, since its controller looks at the time before it begins; ours needs one turn.
- **After a truncation** that is far from the last producer snapshot idempotent appends are answered LEADER_NOT_AVAILABLE (they come again) until the
  producers are found; Kafka holds everything up meanwhile.
- **A missing segment file** between two others refuses the partition (KAFKA_STORAGE_ERROR, one line with the remedy); Kafka serves what is left. After
  an unclean stop a replicated partition ends before such a gap above its recovery point, and keeps the files behind it as `.log.aside`.
- **Transactions** are not served yet: FindCoordinator for a transactional id and InitProducerId with one answer INVALID_REQUEST, a transactional
  batch is refused with INVALID_TXN_STATE. Markers and aborted transactions in files that Kafka wrote are honoured: read_committed consumers see what
  they should.
- **Unclean elections** follow at once when `unclean.leader.election.enable` is switched on for a topic (or for all) without a leader; Kafka looks
  every five minutes. A reassignment that is cancelled with nobody of the former replicas in sync is recorded as recovering.
- **Settings without effect** here are parsed, refused when wrong, stored and described as Kafka's: 258 of brokers, those of groups, of client
  metrics and of tiered storage (`remote.storage.enable=true` is refused, as by a Kafka broker without it). TLS and SASL settings do not change while
  a broker runs. Brokers' compaction lags that contradict each other are INVALID_CONFIG; Kafka takes them and then refuses every change of a topic.
- **Replication throttles** are not served yet: `leader.replication.throttled.replicas` and its kin are refused, so reassign without `--throttle`.
- **Files** are Kafka's own, in both directions. Indexes may hold other entries than Kafka would choose; a look-up in them finds the same.
"""


def kafka_ranges() -> dict[int, tuple[str, VersionRange, str]]:
    """API key -> (name, versions, listeners)."""
    rows = (line.split() for line in KAFKA.strip().splitlines())
    return {
        int(key): (name, version_range(versions), listeners)
        for key, name, versions, listeners in rows
    }


def range_text(versions: VersionRange) -> str:
    if versions.max < versions.min:
        return "-"
    return str(versions.min) if versions.min == versions.max else f"{versions.min}-{versions.max}"


def note(route: Route, kafka: VersionRange) -> str:
    """How the broker's range differs."""
    ours = route.broker if route.broker.max >= 0 else route.controller
    notes = []
    if ours.min < kafka.min:
        notes.append(f"from {ours.min}, as Kafka 3.9")
    if ours.min > kafka.min:
        notes.append(f"not below {ours.min}")
    if ours.max < kafka.max:
        notes.append(f"up to {ours.max}")
    if ours.max > kafka.max:
        notes.append(f"{ours.max} is newer")
    return "; ".join(notes)


def served_rows() -> Iterator[str]:
    kafka = kafka_ranges()
    yield "| key | API | broker | controller listener | Kafka 4.3.1 | difference |"
    yield "|--:|---|---|---|---|---|"
    for route in sorted(ROUTES, key=lambda route: route.api_key):
        versions = kafka[route.api_key][1]
        cells = (
            route.api_key,
            route.name,
            range_text(route.broker),
            range_text(route.controller),
            range_text(versions),
            note(route, versions),
        )
        yield "| " + " | ".join(map(str, cells)) + " |"


def missing_names() -> Iterator[str]:
    served = {route.api_key for route in ROUTES}
    for key, (name, _, listeners) in sorted(kafka_ranges().items()):
        if key not in served:
            yield f"{name} ({key})" if "B" in listeners else f"{name} ({key}, controller)"


def document() -> str:
    """The whole page."""
    served = "\n".join(served_rows())
    missing = ", ".join(missing_names())
    return f"{INTRODUCTION}\n## APIs\n\n{served}\n\nNot served: {missing}.\n{BEHAVIOUR}"


if __name__ == "__main__":
    print(document(), end="")
