"""The rows of one segment file: read in chunks, decoded; damage is one line that names the
file and the byte.

The chunk is large, so that many batches walk in lock-step, and small enough for memory: 32 MiB, or
the largest batch. Source: our own. Not here: decoding (`decoder`), which files (`log_folder`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from replog_pipeline.decoder import Request, Scan, Stop, decode_pieces
from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.chunks import Chunk, chunks
from twisted_broker.wire.records import CorruptRecordError

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES: Final = 32 << 20


class _Pieces:
    """The chunks of a file as the decoder wants them; `position` is the byte where the latest
    begins.
    """

    def __init__(self, path: str, position: int) -> None:
        self.path, self.position = path, position

    def __iter__(self) -> Iterator[tuple[memoryview, Scan]]:
        for chunk in chunks(self.path, CHUNK_BYTES, self.position):
            self.position = chunk.position
            yield chunk.data, _scan(chunk)


def _scan(chunk: Chunk) -> Scan:
    chunk.headers["position"] -= chunk.position
    return Scan(chunk.headers, len(chunk.data), chunk.stop or Stop.END)


def segment_rows(path: str, request: Request, position: int = 0) -> Iterator[pa.RecordBatch]:
    """The rows of the segment at `path` from the batch at `position` on; see
    `decoder.decode_segment`.

    PipelineError for damage, an old format, a file that is gone.
    """
    pieces = _Pieces(path, position)
    try:
        yield from decode_pieces(pieces, request)
    except CorruptRecordError as error:
        where = f"byte {pieces.position + max(error.position, 0)}"
        raise PipelineError(
            f"segments: {path}, {where}: {error.message}: let the broker recover the log, "
            "take another replica, or read with the option crc=flag"
        ) from error
    except FileNotFoundError as error:
        raise PipelineError(
            f"segments: {path} was deleted while it was to be read (retention): read again"
        ) from error
    except OSError as error:
        raise PipelineError(f"segments: {path}: {error.strerror}") from error
