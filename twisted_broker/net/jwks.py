"""The keys that verify tokens of OAUTHBEARER: read from a file or fetched, and again from time to
time.

Owns `JwksKeys`, of one listener.

1. Reading and fetching happen in a thread; the reactor waits for neither.
2. When the keys cannot be read, the former ones stay, and one line says so; without any, every
   token is refused.
3. A token with an unknown key has them read again, at most every `AGAIN_SECONDS`.
4. An answer is at most `MOST_BYTES` long and `TIMEOUT_SECONDS` late.

Ring 2: files, sockets, a thread. Source: Kafka's `RefreshingHttpsJwks`. Not here: which keys are
good (`security/sasl/oauthbearer.py`).
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.interfaces import IClock, IDelayedCall
from twisted_broker.net.url_content import answer_content, file_content
from twisted_broker.security.sasl.oauthbearer import Key, read_keys

SCHEMES = ("file", "http", "https")
AGAIN_SECONDS = 10.0
TIMEOUT_SECONDS = 10.0
MOST_BYTES = 1 << 20
_logger = Logger(namespace="replog.net")


def fetch(url: str) -> bytes:
    """The content at `url`. Raises OSError, or ValueError for a URL that is not one of `SCHEMES` or
    an answer that is too long.
    """
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        raise ValueError(f"it takes a URL of {', '.join(SCHEMES)}")
    if scheme == "file":
        text = file_content(url, MOST_BYTES)
    else:
        began = time.monotonic()
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310  checked
            text = answer_content(answer, MOST_BYTES, began, TIMEOUT_SECONDS)
    if len(text) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES} bytes")
    return text


def _read(url: str) -> tuple[Key, ...]:
    found = read_keys(fetch(url))
    if not found:
        raise ValueError("it holds no public key that can verify a signature")
    return found


class JwksKeys:
    """Call `load`, then `keys` has them; `refresh_ms` later they are read again."""

    def __init__(
        self,
        url: str,
        refresh_ms: int,
        clock: IClock,
        in_thread: Callable[..., Deferred[tuple[Key, ...]]] = deferToThread,
    ) -> None:
        self.keys: tuple[Key, ...] = ()
        self._url, self._refresh, self._clock = url, refresh_ms / 1000, clock
        self._in_thread = in_thread
        self._timer: IDelayedCall | None = None
        self._began = clock.seconds() - AGAIN_SECONDS
        self._is_loading = self._is_stopped = False

    def load(self) -> Deferred[None]:
        """Reads the keys; fires when that has succeeded or failed."""
        self._is_loading, self._began = True, self._clock.seconds()
        # Where the system has no thread left, this is tried again, as after any failure.
        found = maybeDeferred(self._in_thread, _read, self._url)
        return found.addCallbacks(self._loaded, self._failed)

    def load_again(self) -> None:
        """A token named a key that is not there."""
        if self._is_stopped or self._is_loading:
            return
        if self._clock.seconds() - self._began >= AGAIN_SECONDS:
            self._again()

    def stop(self) -> None:
        """Reads no more."""
        self._is_stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _loaded(self, found: tuple[Key, ...]) -> None:
        self.keys = found
        self._next(self._refresh)

    def _failed(self, failure: Failure) -> None:
        _logger.warn(
            "sasl.oauthbearer.jwks.endpoint.url: the keys cannot be read ({error}); {then}",
            error=failure.value,
            then="the former ones stay" if self.keys else "until then every token is refused",
        )
        self._next(AGAIN_SECONDS)

    def _next(self, seconds: float) -> None:
        self._is_loading = False
        if not self._is_stopped:
            self._timer = self._clock.callLater(seconds, self._again)

    def _again(self) -> None:
        if self._timer is not None and self._timer.active():
            self._timer.cancel()
        self.load()
