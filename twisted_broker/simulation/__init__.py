"""Whole clusters in memory under a seed, and their invariants: `make simulate`.

Machines, network, disks and clients of a simulated cluster are here, on one clock. `faults`: what
fails in it. `checks`: what must hold all the same, and the anomalies of client histories.
`scenario`: replication cases as text files, and what runs them. `memory_network`: a
network in which nothing fails, for tests of one part.

`twisted_broker.testing` has clusters on a real clock, for tests of others, from the same machines.
"""
