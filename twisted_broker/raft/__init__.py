"""The metadata quorum (KRaft) as pure decisions: leader, high watermark, voters.

1. Inputs are plain calls with the time as an argument; each gives a list of consequences
   (`consequences.py`), in the order in which they take effect.
2. Nothing here waits: what a message says about the disk is named in it (`after`), and who carries
   it holds it back until that is durable.

Source: Kafka's module `raft` (KIP-595, KIP-630, KIP-853, KIP-996). Driven by
`cluster/metadata_log.py`, and by its simulation (`tests/raft`). Not here: sockets, files, timers,
bytes of records.
"""
