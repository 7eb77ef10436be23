"""Segments to Arrow without Spark: bytes in, record batches out, a whole group of batches at a time
(numpy).

Of ours it imports only `wire` (a test holds it to that): tools that read log files use it without
the pipeline.
"""

from .headers import HEADER, Scan, Stop, codecs, crc_ok, headers, last_offsets, scan
from .rows import FAIL, FLAG, Request
from .segment import decode_pieces, decode_segment
from .transactions import AbortedTransaction, TransactionLog, aborted_batches

__all__ = [
    "FAIL",
    "FLAG",
    "HEADER",
    "AbortedTransaction",
    "Request",
    "Scan",
    "Stop",
    "TransactionLog",
    "aborted_batches",
    "codecs",
    "crc_ok",
    "decode_pieces",
    "decode_segment",
    "headers",
    "last_offsets",
    "scan",
]
