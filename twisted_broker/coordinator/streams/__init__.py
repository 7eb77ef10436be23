"""Streams groups (KIP-1071): the decisions on their requests. Ring 0."""
