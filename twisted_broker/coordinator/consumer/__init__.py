"""Consumer groups of KIP-848: their state, and the decision on a heartbeat."""
