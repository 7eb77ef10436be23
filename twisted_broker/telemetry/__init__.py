"""Client telemetry (KIP-714): which metrics clients push, and what they pushed."""
