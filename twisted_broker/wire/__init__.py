"""Kafka's bytes and what they mean: primitives, messages, headers, frames, record batches.

Imports nothing else of this package.
"""
