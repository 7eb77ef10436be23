"""Faults that a simulated run injects: machines, disks, network, metadata, and faults triggered by
a situation.
"""
