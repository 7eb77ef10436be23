"""The benchmarks run, and their table says what was measured."""
