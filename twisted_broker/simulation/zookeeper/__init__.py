"""Simulated clusters of Apache Kafka 3.9's ZooKeeper mode: `make simulate ZOOKEEPER=1`."""
