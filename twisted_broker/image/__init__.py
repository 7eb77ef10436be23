"""The cluster's metadata at one offset of the metadata log, as immutable data: brokers, topics,
partitions and settings. Records are applied here; nothing is decided here.
"""
