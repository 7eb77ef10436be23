"""Streams groups (KIP-1071): what is decided about them. Ring 0."""
