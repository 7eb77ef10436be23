"""A Kafka broker as a Python package: wire, log, replication, cluster and coordinators on
Twisted. See docs/ARCHITECTURE.md.
"""
