"""Twins of clock, disk and network in memory, a simulated cluster, faults, scenarios, and the
checks of what a run shows.

`memory_network`, `memory_leader`: twins in which nothing fails, for tests of one part. `sim`: a
whole cluster under a seed. `faults`: what fails in it. `checks`: what must hold all the same, and
the anomalies of client histories. `scenario`: replication cases as text files, and what runs them.
"""
