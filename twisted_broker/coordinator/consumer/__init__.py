"""Consumer groups of KIP-848: what they are, and what a heartbeat decides."""
