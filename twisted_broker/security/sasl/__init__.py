"""SASL: mechanisms and the state machines of both sides, over bytes."""
