"""The memory twins of the ports: clock, disk, network."""
