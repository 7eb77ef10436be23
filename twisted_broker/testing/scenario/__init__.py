"""Scenarios of replication: plain lines, performed by production code on simulated machines."""
