"""One partition on this broker: its role, its in-sync replicas, its high watermark, and what it
remembers of its changes.
"""
