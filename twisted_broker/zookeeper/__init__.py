"""A member of an Apache Kafka 3.9 cluster with ZooKeeper, at inter-broker protocol 2.6 or 3.9.

Roles come from the controller, a Java broker, as LeaderAndIsr, StopReplica and UpdateMetadata; they
become the images and deltas that `replication/role_change.py` takes. Loaded only where
`zookeeper.connect` is set.

1. Nothing of it is imported by the other packages, but by `tap.py` when the setting is there.
2. kazoo is imported by `kazoo_client.py` only; everything else knows `IZooKeeper`.

Source: RL 0, KRAFT 2. Not here: a controller of ours: one broker of the cluster is Apache Kafka's.
"""
