"""Share partitions, sessions and fetches."""
