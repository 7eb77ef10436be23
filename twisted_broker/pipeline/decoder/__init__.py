"""Segments to Arrow without Spark: bytes in, record batches out, a whole group of batches at a time (numpy).

Of ours it imports only `wire` (a test holds it to that): tools that read log files use it without the pipeline.
"""

from .headers import HEADER, Scan, Stop, codecs, crc_ok, headers, last_offsets, scan

__all__ = ["HEADER", "Scan", "Stop", "codecs", "crc_ok", "headers", "last_offsets", "scan"]
