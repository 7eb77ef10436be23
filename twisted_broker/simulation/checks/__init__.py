"""The invariants of a simulated cluster, and the anomalies of client histories."""
