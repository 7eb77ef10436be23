"""Faults that a simulated run injects: machines, disks, network, and faults triggered by a
situation.
"""
