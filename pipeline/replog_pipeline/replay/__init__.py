"""Records back into a topic, each once, without transactions: the broker itself refuses
duplicates.

The n-th record of a source partition becomes offset n of the target partition, and is sent with
sequence number n under a producer id that follows from the target's topic id. Every writer of a
replay, in whatever process or attempt, says the same sequence for the same record; the broker's own
check of sequences then is a compare-and-append: a batch that is there already is answered as a
duplicate, one that does not follow the last is refused, and a request of a killed writer that
arrives late is one of the two. Nothing about progress is kept outside the target:

    position = end offset, and the last batch proves it: our producer id, and its base sequence is
    its base offset

A record of another producer shifts all later offsets against their sequences, so the proof finds
it wherever it is.

| module | owns |
|---|---|
| `identity` | the producer id; offset to sequence |
| `connection`, `cluster` | blocking requests with the package `wire`; who leads |
| `secured_socket` | TLS and SASL beneath them |
| `bearer_token` | OAUTHBEARER: where a token comes from |
| `target` | the position and its proof |
| `batches` | Arrow rows to record batches |
| `writer` | one partition: batches in flight, and how it continues after a failure |
| `task` | what one Spark task does |

Of ours only `wire`, the broker's mechanisms of SASL and its reader of key stores, `pipeline.errors`
and `kafka_cluster` are imported, and of Spark nothing: it runs in executors.
Source: KIP-98 (idempotent producer), Kafka's ProducerAppendInfo. Not here: records with log append
time get it as create time.
"""
