"""Our answers beside Apache Kafka's: `make compare KAFKA=HOST:PORT`.

KAFKA is a node of 4.3.1, broker and controller in one, formatted afresh (a second run needs a fresh
one again), with `node.id=1`, replication factors of 1 for its internal topics and
`group.initial.rebalance.delay.ms=0`. Ours is started here with the same settings.

| file | what |
|---|---|
| `run.py` | starts our broker, goes through the cases on both, prints what differs |
| `side.py` | one broker: connections, requests from dictionaries, what must differ |
| `members.py` | groups of two and three members, also static, with rebalances under way |
| `data_cases.py`, `group_cases.py`, `admin_cases.py` | the cases, a function per API |
| `consumer_group_cases.py` | those of consumer groups (KIP-848) |
| `share_fetch_cases.py` | share partitions and sessions (KIP-932) |
| `share_group_cases.py` | those of share groups (KIP-932) |
| `share_state_cases.py` | those of the share coordinator (KIP-932) |
| `acl_cases.py` | those of ACLs |
| `permissions.py` | a program: all cases once more, asked by a client that may do little |
| `allowed_permissions.py` | what may differ then besides |
| `transaction_cases.py` | those of transactions, their offsets and markers |
| `controller_cases.py` | those on the controller's listener, found by DescribeQuorum |
| `hostile.py` | `--hostile COUNT`: damaged requests to both, kinds of results side by side |
| `differences.py` | two answers field by field |
| `allowed.py` | THE table of what may differ, each row with its reason |

Every function is called at its API's lowest, a middle and its highest version. Something that
differs and is not listed makes status 1, and so does a row of the table that nothing used. A new
API is a function in one of the files of cases: a test fails when an API that we serve to clients
has none.

The review of 7,208 answers found 19 kinds of differences. What holds each of them now (a case by
its API and label, or a test):

- times beyond the topic's bounds, `record_errors`: Produce `one record 2 h ahead` and the others of
  `_times`;
- damaged batches, magic 3 and -1: Produce `cut to N`, `N bytes more`, `magic N`, `garbage`;
- compaction lags that contradict each other: CreateTopics, AlterConfigs `compaction lags`;
- wrong broker settings that have no effect: AlterConfigs `broker, io threads -1` and its kin;
- ListOffsets, timestamp -7 and below: `timestamp -7`, `timestamp -8`;
- leader epoch -2: ListOffsets `leader epoch -2`, OffsetForLeaderEpoch `current epoch -2`;
- `group_type`: ListGroups `all` at version 5;
- a setting twice: AlterConfigs `named twice`;
- assignments in PreparingRebalance: DescribeGroups `two, preparing`;
- one of producer id and epoch: InitProducerId `id without epoch`, `epoch without id`;
- limits and cursors: DescribeTopicPartitions `limit N`, `cursor ...`;
- features from 0 on: ApiVersions `what is served` at version 3;
- brokers and topics that cannot be: AlterConfigs `another broker`, `bad topic`; DescribeProducers
  `name ...`;
- auto-creation by the broker's own file, with a controller elsewhere: `tests/api/test_metadata.py`,
  `test_a_topic_is_created_as_the_brokers_own_file_says`;
- settings without effect, texts as given: DescribeConfigs `the broker, ...`; AlterConfigs
  `text as given`;
- loggers, client metrics, groups, tiered storage: DescribeConfigs `loggers` and its kin;
  AlterConfigs `metrics ...`, `group ...`, `tiered ...`;
- share coordinators, strings that are not UTF-8: FindCoordinator `type 2`, `not UTF-8`; Metadata
  `name not UTF-8`;
- a timeout of 0: CreateTopics, DeleteTopics, CreatePartitions `timeout 0`;
- a follower that is fenced after a restart: `tests/replication/test_fetcher_rounds.py`.
"""
