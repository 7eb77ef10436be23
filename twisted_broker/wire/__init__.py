"""Bytes and messages: framing, descriptions of every message, record batches. Imports nothing of ours."""
