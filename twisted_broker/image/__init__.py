"""What the metadata log says at one offset, as immutable data: brokers, topics, partitions and
settings. Everybody reads it; the records that build it are applied here, nothing is decided here.
"""
