"""Scenarios of replication: text files that production code runs on simulated machines."""
