"""A Kafka broker as a Python package: wire, log, replication, cluster and coordinators on
Twisted. See docs/ARCHITECTURE.md.
"""

# The version: setup.cfg reads it from this file's text, so it must stay a literal,
# and nothing is imported here. The extras' requirements and pipeline/setup.cfg repeat it;
# tests/test_distributions.py holds them together.
__version__ = "0.1.0"
