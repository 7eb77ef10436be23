"""The log cleaner: what becomes of topics with `cleanup.policy=compact`."""
