"""The state of a broker outside of the protocol: run file, metrics, explanations."""
