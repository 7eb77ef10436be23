"""Clusters of real processes under faults and stock clients: nothing acknowledged may be lost."""
