"""Client telemetry (KIP-714): which metrics clients push, and the numbers that they pushed."""
