"""A consumer for Twisted programs, on the base of the replica fetchers: how records get from any
Kafka cluster into bounded queues, and out of them in order.
"""
