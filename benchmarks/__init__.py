"""Where the figures come from: `compare` and its load, and the micro-benchmarks of codecs and
records. See README.md.
"""
