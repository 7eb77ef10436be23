"""What the metadata log says at one offset, as immutable data: brokers, topics, partitions, settings.

Plain data that everybody reads; the records that build it are applied here, nothing is decided here.
"""
