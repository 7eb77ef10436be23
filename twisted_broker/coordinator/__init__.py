"""Consumer groups and their offsets, kept as records of `__consumer_offsets`."""
