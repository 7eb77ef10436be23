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
from twisted_broker.known_settings import broker_settings
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

Made by `make docs` from `twisted_broker/api/compatibility.py` and the table of APIs in `twisted_broker/api/routes.py`; do not edit.

The table lists every API and version that is served. ApiVersions advertises exactly these. A request for anything else closes the connection, as in Kafka.
"""

BEHAVIOUR = """
## Where behaviour differs from Apache Kafka 4.3.1

- **Old clients**: Produce 0-2 accepts message sets of magic 0 and 1, and Fetch 0-3 returns them (Kafka dropped these versions in 4.0). Records
  from old clients are stored as batches of magic 2. Records compressed with zstd cannot be returned to old clients.
- **Records inside a batch** are read only where something depends on them: on compacted topics (each record needs a key), for conversion, for
  recompression (the topic's `compression.type` is not the producer's), and for bounded timestamps (the topic sets
  `message.timestamp.before.max.ms`, or the header's base or largest timestamp is out of bounds). Otherwise the broker checks the header, the CRC and
  the record count, and stores the batch as it came: a record whose timestamp is larger than the header says is not noticed.
  `replog.validate.records=true` checks every record of every batch, as Kafka does. A compressed batch that claims more records than it has bytes is
  decompressed and its records are counted, up to 65,536 records and 8 MiB. Above that it is refused with MESSAGE_TOO_LARGE, and producers split it.
  So is a compressed batch whose records are read, above 65,536 records or eight times `max.message.bytes`.
- **LogAppendTime** in a producer's batch gets INVALID_TIMESTAMP on every topic; Kafka accepts it on topics with CreateTime and clears the flag.
- **A timeout of 0** in CreateTopics, DeleteTopics and CreatePartitions: the request is carried out and answered. Kafka answers REQUEST_TIMED_OUT and
  changes nothing, since its controller checks the time first; ours needs one turn of its reactor.
- **After a truncation** far from the last producer snapshot, idempotent appends get LEADER_NOT_AVAILABLE (clients retry) until the producer state is
  rebuilt, and DescribeProducers UNKNOWN_TOPIC_OR_PARTITION, at which Kafka's client asks again. Kafka blocks the partition for that time.
- **A missing segment file** between two others takes the partition offline (KAFKA_STORAGE_ERROR; one log line names the file and the remedy). Kafka
  serves the segments that are left. After an unclean stop the log is truncated before a gap above its recovery point, and one
  line says which offsets are gone; the segments behind the gap are kept as `.log.aside`.
- **Committed offsets of a deleted topic** are removed also where their coordinator was being read when the topic was deleted. Kafka leaves those
  until they expire.
- **Offsets by time** (ListOffsets) are those of records that live. Kafka looks only into the first segment whose largest timestamp is late enough,
  and answers -1 where the records there were deleted or compacted away; here the search goes on to later segments. For the largest timestamp Kafka
  may name a deleted record, or none; here it is the largest of what is left.
- **The log cleaner** works in a process of its own, with a lower priority. A damaged log is left alone until a restart or a
  change of a setting of the cleaner or the topic. A full disk or a lack of memory delays a round; in Kafka a full disk takes the log directory offline. `log.cleaner.enable=false` and `log.cleaner.threads=0` switch it off.
- **A replica that was away for longer than `delete.retention.ms`** may hold records of a transaction whose end marker its leader's cleaner has taken.
  It copies its log again from where that transaction begins. Kafka's keeps it open, or takes the producer's next marker for its own.
- **Retention of a log that cannot be cleaned** goes on under `cleanup.policy=compact,delete`, so that the disk does not fill. Kafka stops both.
- **Compressed message sets of magic 1 with inner messages of magic 0** (KAFKA-4298) are not cleaned: their log is left alone, as a damaged one. Kafka
  rewrites them.
- **A segment whose offsets span more than 2^31-1** (old Kafka cleaners wrote them, KAFKA-6264) is split by Kafka when it is cleaned. Here it is not, and
  after an unclean stop the log ends where the span does: let Kafka split it before its directory is taken over.
- **A group coordinator that takes over** answers COORDINATOR_LOAD_IN_PROGRESS until what it read is below the high watermark. Where that takes over a
  second, as with an ISR below its minimum, it serves OffsetFetch, DescribeGroups and ListGroups of what is below; an offset above is
  UNSTABLE_OFFSET_COMMIT, or COORDINATOR_LOAD_IN_PROGRESS without `require_stable`, where Kafka gives the value before it. Kafka serves at once, refuses what it cannot write with COORDINATOR_NOT_AVAILABLE, and holds back other answers.
- **Consumer groups (KIP-848)** and classic groups change into each other with their members, as `group.consumer.migration.policy` says. Where the
  last member of the consumer protocol is replaced by a classic one of its instance id, the classic group rebalances unless all its members have
  what they should; Kafka's does only where the target is older. A consumer group whose members are all classic tells them to join again when a
  target is due or its topics changed; Kafka's waits until somebody joins. A classic member that has not fetched its newest assignment when its
  group is upgraded keeps what it said it owned until it has; Kafka gives that to others at once. Requests behind a change of the kind get
  COORDINATOR_NOT_AVAILABLE. A cluster that was made before them has
  them after `kafka-features upgrade --feature group.version=1`. Of equal votes the first of
  `group.consumer.assignors` wins, members are ordered by their ids where Kafka has the order of a hash map, and neither assignor can be a class. Patterns are RE2's with
  the bounds of ListTransactions', and a group has 100 of them at most (INVALID_REQUEST). ConsumerGroupDescribe is bounded as DescribeGroups is.
- **Streams groups (KIP-1071)**: a cluster that was made before them has them after `kafka-features upgrade --feature streams.version=1`. Members and
  processes are ordered by ids where Kafka has the order of a hash map, so equal loads are given out in another order. An endpoint's partitions of a
  topic that has fewer than its member has tasks are those of the tasks that there are; Kafka lists the first numbers of tasks. A topology with
  numbers or names that no client of Kafka's sends (a negative epoch or count, an id twice, a copartition group of topics that are not there) is
  STREAMS_INVALID_TOPOLOGY; Kafka answers UNKNOWN_SERVER_ERROR. The state filter of ListGroups knows `NotReady` beside Kafka's `not_ready`.
  StreamsGroupDescribe is bounded as DescribeGroups is.
- **Share groups (KIP-932)**: the order of members and partitions in `simple` is that of their ids, and it cannot be another assignor. A cluster
  that was made before them has them after `kafka-features upgrade --feature share.version=1`. DescribeShareGroupOffsets answers about a partition
  that there is not with UNKNOWN_TOPIC_OR_PARTITION; Kafka never answers. AlterShareGroupOffsets that cannot reach the share coordinator for some
  partitions changes the others; Kafka changes none. The share coordinator answers COORDINATOR_LOAD_IN_PROGRESS until all that it has read is committed; Kafka serves it before. What is kept of a topic that is deleted while a
  partition of `__share_group_state` has no leader goes when one takes over; Kafka keeps it. InitializeShareGroupState
  without a start offset, of the epoch that the state has, is an earlier try and changes nothing; Kafka forgets by it what was accepted since. An unknown topic id in ShareFetch is an error of its partition;
  Kafka fails the whole request. A partition without another leader to name carries the leader -1, not 0. The start offset passes offsets that the log
  does not have, also where what was persisted has a hole; Kafka's may stand still there. A member whose connection is lost while its fetch waits acquires
  nothing more.
- **Client telemetry (KIP-714)**: GetTelemetrySubscriptions and PushTelemetry are listed unless `replog.client.telemetry=false`; Kafka lists them only
  with a plugin. What is pushed is shown at `/metrics`: sums and gauges, as `client_` and their name. One payload is 4 MiB at most, whatever
  `telemetry.max.bytes` says. A pattern of `match` has the bounds of ListTransactions'. 16,384 clients are known at a time (Kafka's number), with
  1,000 series of one and 50,000 of all; the rest is counted in `replog_client_metrics_left_out_total`.
- **A log beside the directory of its replica** is not served while that directory, by the metadata, is offline: it may be an older one (one log line
  names both). Kafka serves any log that it finds.
- **A replica that a metadata snapshot does not list** is kept as `TOPIC-N.<hex>-stray`, not deleted. A replica is deleted only when a record of the
  metadata log removes it; at a start also one that was removed while the broker was away, where that record is still in the log.
- **Transactions**: a record of `__transaction_state` whose append timed out counts once it is replicated, and the transactional id gets
  CONCURRENT_TRANSACTIONS until then; Kafka forgets it and may contradict its own log. A transaction coordinator that takes over answers
  COORDINATOR_LOAD_IN_PROGRESS for an id whose last record is above the high watermark (and to ListTransactions while there is one); Kafka
  serves it, and sends its markers, although the record may be lost. It serves 1,000,000 transactional ids at most. AddPartitionsToTxn
  and AddOffsetsToTxn of a client, and TxnOffsetCommit 5, wait up to 100 ms for the markers of the transaction before; Kafka answers
  CONCURRENT_TRANSACTIONS at once, and clients pause. A marker is sent again when the answer of WriteTxnMarkers lacks its producer or has an
  unknown error code; Kafka throws, and the marker is lost until the partition's next coordinator. A marker that a leader refuses for now
  is sent again after 0.1 s, then later and later, each second at last; Kafka sends it again at once. Where a partition
  holds a newer producer epoch than a prepared transaction, and no newer coordinator wrote there, the newest records of the transactional id were
  lost: what is open there is aborted, and the id goes on with a higher epoch; Kafka leaves it stuck. Two-phase commit (InitProducerId 6) is not
  supported. The pattern of ListTransactions is RE2's without Unicode classes, `\\b` and flags in its middle, of
  300 elements and 1,000 characters at most; a pattern of `match` of client metrics is so, too. Kafka has no such bounds: nested counts
  take all its memory.
- **Unclean elections** happen at once when `unclean.leader.election.enable` is set for a topic (or for all) that has no leader, or a partition
  of such a topic gets a replica that lives; Kafka checks every five minutes. When a cancelled reassignment leaves no former replica in sync, the new leader is recorded as recovering.
- **A refused ISR expansion** (INELIGIBLE_REPLICA) raises the partition epoch, so that an earlier copy of the request, on a connection that the leader
  gave up, is refused, too. Kafka's controllers may grant it, also to our brokers: the replica is in the ISR then, and lacks what was committed since.
- **Controllers**: a first start that nothing formatted founds a cluster of its own, at kraft.version 0, for its controller's listener may have another
  port at the next start; Kafka's wants `kafka-storage format`. A voter's bytes are
  synced before they count, the leader's too. An only voter that gets a second one goes on leading. The only voter's log begins behind its newest snapshot; where
  several vote it goes back as far as `metadata.max.retention.bytes` and `.ms` let it. A controller on a directory
  that lacks what it is known to have held, or acknowledged, does not start; one of several whose node has applied more does not lead. UpdateFeatures of kraft.version is refused with one line that names the voters that have not
  said yet that they serve it.
- **SASL**: GSSAPI (Kerberos) is not supported, and no setting names a class that is loaded. A JAAS line is a setting of its
  listener; no JAAS file is read. SCRAM's last message must repeat the header of the first (RFC 5802), which Kafka does not check.
- **Delegation tokens**: one that expired is refused at once, not only once it was removed. An owner is of type User. A principal has requested
  10,000 tokens at most at a time (POLICY_VIOLATION), with owner and renewers of 8 KiB (INVALID_REQUEST). A controller's listener does not
  advertise DescribeDelegationToken, which Kafka's advertises and answers with UNKNOWN_SERVER_ERROR.
- **Settings without effect** are parsed, refused when wrong, stored and described as in Kafka: {count} of brokers, those of groups, of client metrics
  and of tiered storage (`remote.storage.enable=true` is refused, as by a Kafka broker without tiered storage). `principal.builder.class`, `ssl.engine.factory.class` and `sasl.mechanism.inter.broker.protocol` cannot change while a broker runs.
- **Listeners that come while a broker runs** (`listeners` of one broker) are registered and advertised; brokers of Apache Kafka open them and
  advertise them to nobody. An address that is not free is refused, where Kafka stores it and writes a line. A cluster's compaction lags that contradict each other get INVALID_CONFIG; Kafka accepts them, and then refuses
  every change of a topic.
- **`max.connections.per.ip.overrides`** takes addresses. Names of hosts are refused, and not resolved; a wrong value that AlterConfigs sets is one line
  in the log, and the limits of before stay.
- **Client quotas** ([QUOTAS.md](QUOTAS.md)): an `ip` is an address, names of hosts are refused; `request_percentage` is of the one thread that serves
  requests, and does not count the sending of answers. What is measured is bounded: 20,000 clients for each kind of quota.
- **A name that a request has twice** (a topic, a partition) has an answer for each mention. Kafka answers once.
- **Requests that no client sends** have a refusal or a meaning where Kafka fails (UNKNOWN_SERVER_ERROR) or guesses: an unknown isolation level counts as 0, a
  limit of bytes below 0 as 0, an empty name in DescribeTopicPartitions is INVALID_TOPIC_EXCEPTION, a replica id below -2 and a rebalance timeout below 0
  are INVALID_REQUEST. Records for a partition that is not there are UNKNOWN_TOPIC_OR_PARTITION, also where they cannot be read; Kafka reads them first.
- **AppendMirrored** (30000) is an API of ours, for [`replog mirror`](MIRROR.md): batches of another cluster keep their offsets. ApiVersions lists it; Kafka's clients
  skip keys that they do not know. A topic with the setting `replog.mirror.source`, ours as well, takes nothing from producers (POLICY_VIOLATION).
- **Files** are Kafka's own, in both directions. Index entries may differ from those that Kafka would write; a lookup finds the same offset.

## Limits that Kafka does not have, or sets otherwise

| limit | value | beyond it |
|---|---|---|
| elements of all arrays in one request | 100,000 | the connection is closed, one log line |
| tagged fields in one structure | 1,024 | the connection is closed, one log line |
| partitions in one Fetch of more than 400 | 10,000 more than the broker holds | the connection is closed, one log line |
| bytes of long requests in memory (`queued.max.request.bytes`) | 128 MiB; Kafka: no limit | connections with long requests wait |
| topics that one Metadata request may create | 1,000 | the others are not created |
| groups that one broker serves | 1,000,000 | an idle classic group is dropped from memory, else COORDINATOR_NOT_AVAILABLE |
| members of one group, whatever `group.max.size`, `group.consumer.max.size` and `group.streams.max.size` are; ids given to members that did not come back yet | 3,000 each | GROUP_MAX_SIZE_REACHED |
| metadata of all members of one group together | 32 MiB | GROUP_MAX_SIZE_REACHED |
| protocols that one member names in JoinGroup | 100 | INVALID_REQUEST |
| topics that one member names in ConsumerGroupHeartbeat | 10,000 | INVALID_REQUEST |
| subtopologies of one topology, and topics that it names | 1,000, and 10,000 | STREAMS_INVALID_TOPOLOGY |
| members, metadata and assignments in one answer of DescribeGroups | 64 MiB, each member counted with 300 bytes more | COORDINATOR_LOAD_IN_PROGRESS for the other groups: clients request them again |
| subscriptions and assignments in one group's record (a topic takes 1 MiB unless it is set otherwise) | 8 MiB | UNKNOWN_SERVER_ERROR, as for a record that the topic refuses |
| topics in all subscriptions of one group | 50,000 | the group counts as subscribed to every topic: its offsets do not expire while it is stable |

Open files are shared out within the process's limit (`ulimit -n`, LimitNOFILE), which is raised to the hard limit at the start. Of that limit:

| share | for |
|---|---|
| up to a third, at most `replog.max.open.segments` (512) | segment files of the logs |
| an eighth, at most 4,096 | connections to a controller's listener; when it is used up, a new connection replaces the oldest one that never sent a request |
| 64, and 12 for each log directory, at most a quarter | connections to other brokers, listeners, disk work |
| a sixteenth, at most 1,024 | connections of other brokers to `inter.broker.listener.name`, where clients have another listener |
| the rest, at most `max.connections` | connections of clients; a new connection beyond it is closed at once, or, where it may be a broker's, takes the place of another ([QUOTAS.md](QUOTAS.md)) |

With several `--brokers` in one process, each broker has an equal part of the limit.
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
    if kafka.max < 0:
        return "ours"
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
        versions = kafka[route.api_key][1] if route.api_key in kafka else version_range(None)
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
    behaviour = BEHAVIOUR.replace("{count}", str(len(broker_settings())))
    lacking = f"Not served: {missing}.\n" if missing else ""
    return f"{INTRODUCTION}\n## APIs\n\n{served}\n\n{lacking}{behaviour}"


if __name__ == "__main__":
    print(document(), end="")
