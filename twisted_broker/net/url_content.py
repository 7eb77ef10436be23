"""The content of a URL of a file or of HTTP, bounded in length and time.

Owns `file_content` and `answer_content`, for keys (`net/jwks.py`) and tokens
(`net/access_tokens.py`).

1. At most one byte more than the limit is read, so that the caller sees that there is more.
2. The time limit is for the whole answer: a socket's own limit is for one read only.

Ring 2: files and sockets, in a thread of the caller's. Not here: which URLs are allowed,
redirections, what the content means.
"""

from __future__ import annotations

import os
import time
from http.client import HTTPResponse
from urllib.parse import unquote, urlsplit

_PIECE_BYTES = 65_536


def file_content(url: str, most: int) -> bytes:
    """Of a `file:` URL. Raises OSError, or ValueError for what is no regular file."""
    path = unquote(urlsplit(url).path)
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError("it is no regular file")  # the thread would wait for a FIFO for ever
    with open(path, "rb") as file:
        return file.read(most + 1)


def answer_content(answer: HTTPResponse, most: int, began: float, seconds: float) -> bytes:
    """Raises OSError where it is not all here `seconds` after `began` (monotonic clock)."""
    text, ends = b"", began + seconds
    while len(text) <= most:
        piece = answer.read1(min(_PIECE_BYTES, most + 1 - len(text)))
        if not piece:
            break
        text += piece
        if time.monotonic() > ends:
            raise OSError(f"the answer is not all here within {seconds:g} s")
    return text
