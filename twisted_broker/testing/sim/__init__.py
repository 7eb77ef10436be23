"""The simulation: a whole cluster in one thread, with clock, disk and network under a seed."""
