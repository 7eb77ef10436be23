"""Streams groups of KIP-1071."""
