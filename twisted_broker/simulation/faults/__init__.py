"""Faults that a simulated run injects: machines, disks, network, metadata, groups, and faults
triggered by a situation.
"""
