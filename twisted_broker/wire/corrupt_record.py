"""The errors of record bytes: the typed refusals of batches, records and compressed payloads.

1. Every fault found in record bytes, from whomever they came, is a `CorruptRecordError` or a
   subclass; no `struct.error`, `IndexError` or error of a compression library leaves the record
   modules.
2. The code is the one Kafka answers: at CORRUPT_MESSAGE a producer sends the same bytes again
   (damaged on the way), the others do not.

Source: Kafka's CorruptRecordException, InvalidRecordException, UnsupportedCompressionTypeException.
Not here: which request answers what.
"""

from __future__ import annotations

from .errors import BrokerError, ErrorCode


class CorruptRecordError(BrokerError):
    """Bytes that are not a batch: wrong length, unknown magic, CRC mismatch.

    `position` is the byte in the buffer walked, -1 when unknown.
    """

    def __init__(
        self, message: str, position: int = -1, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE
    ) -> None:
        super().__init__(code, message if position < 0 else f"{message} (at byte {position})")
        self.position = position


class InvalidRecordError(CorruptRecordError):
    """The batch is intact, but what its producer put inside breaks the format: INVALID_RECORD."""

    def __init__(self, message: str, position: int = -1) -> None:
        super().__init__(message, position, ErrorCode.INVALID_RECORD)


class UnsupportedCodecError(CorruptRecordError):
    """A codec that does not exist or is not allowed in this message format:
    UNSUPPORTED_COMPRESSION_TYPE.
    """

    def __init__(self, message: str, position: int = -1) -> None:
        super().__init__(message, position, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


class OutputLimitError(CorruptRecordError):
    """The payload decompresses beyond what the caller allows: MESSAGE_TOO_LARGE, at which producers
    split their batch.
    """

    def __init__(self, max_output_bytes: int) -> None:
        super().__init__(
            f"compressed records inflate to more than {max_output_bytes} bytes",
            -1,
            ErrorCode.MESSAGE_TOO_LARGE,
        )
