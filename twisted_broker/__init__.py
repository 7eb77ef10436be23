"""A Kafka broker as a Python package: wire, log, replication, cluster and coordinators on
Twisted. See docs/ARCHITECTURE.md.
"""

# The one place of the version: setup.cfg reads it from this file's text, so it must stay a literal,
# and nothing is imported here.
__version__ = "0.1.0"
