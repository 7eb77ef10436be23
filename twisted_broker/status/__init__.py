"""The state of a broker outside of the protocol: run file, pages, health, metrics, explanations."""
