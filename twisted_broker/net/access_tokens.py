"""The access token by which this node logs in to others (OAUTHBEARER): read from a file or
requested, and again before it expires.

Owns `AccessTokens`, of one listener's name.

1. Reading and requesting happen in a thread; the reactor waits for neither.
2. A token is replaced when `WINDOW` of its life is over. What cannot be replaced is used until it
   expires; then nothing is sent: a login fails, in one line that names the setting.
3. The client's secret goes to the one URL that is set: redirections are not followed.
4. An answer is at most `MOST_BYTES` long and `TIMEOUT_SECONDS` late. No line holds a token, a
   secret, or what an endpoint answered.

Ring 2: files, sockets, a thread. Source: Kafka's `ExpiringCredentialRefreshingLogin`,
`HttpJwtRetriever`. Not here: what a token is (`security/sasl/access_token.py`).
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure

from twisted_broker.interfaces import IDelayedCall, Runtime
from twisted_broker.net.url_content import answer_content, file_content
from twisted_broker.security.sasl.access_token import (
    AccessToken,
    OAuthLogin,
    parse_token,
    token_of_answer,
    token_request,
)
from twisted_broker.security.sasl.errors import SaslFailure

WINDOW = 0.8
AGAIN_SECONDS = 10.0
TIMEOUT_SECONDS = 10.0
MOST_BYTES = 1 << 20
_SETTING = "sasl.oauthbearer.token.endpoint.url"
_logger = Logger(namespace="replog.net")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


def _opener(url: str) -> urllib.request.OpenerDirector:
    handlers: list[Any] = [_NoRedirects]
    if url.startswith("http:"):  # on this machine: a proxy would get the secret
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def retrieve(login: OAuthLogin) -> AccessToken:
    """Returns a token. Raises OSError or ValueError; neither holds a secret."""
    if login.url.startswith("file:"):
        try:
            return parse_token(file_content(login.url, MOST_BYTES).decode("ascii"))
        except UnicodeDecodeError:
            raise ValueError("what came is no signed token (JWT)") from None
    headers, body = token_request(login)
    # The schemes are checked with the settings.
    request = urllib.request.Request(login.url, body, headers)  # noqa: S310
    began = time.monotonic()
    try:
        with _opener(login.url).open(request, timeout=TIMEOUT_SECONDS) as answer:
            text = answer_content(answer, MOST_BYTES, began, TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"the endpoint answered with status {error.code}") from None
    except HTTPException as error:  # its text is what came
        raise OSError(f"the endpoint speaks no HTTP: {type(error).__name__}") from None
    if len(text) > MOST_BYTES:
        raise ValueError(f"the answer is longer than {MOST_BYTES} bytes")
    return parse_token(token_of_answer(text))


class AccessTokens:
    """Call `load`, then `text()` gives the token of now."""

    def __init__(
        self,
        login: OAuthLogin,
        runtime: Runtime,
        in_thread: Callable[..., Deferred[AccessToken]] = deferToThread,
    ) -> None:
        self._login, self._runtime, self._in_thread = login, runtime, in_thread
        self._token: AccessToken | None = None
        self._timer: IDelayedCall | None = None
        self._is_stopped = False
        self._trouble = "it was not retrieved yet"

    def text(self) -> str:
        """The text of the token. Raises SaslFailure when no token is valid now."""
        token = self._token
        if token is None or token.expires_wall_ms <= self._runtime.wall_ms():
            raise SaslFailure(f"there is no access token ({self._trouble}): see {_SETTING}")
        return token.text

    def load(self) -> Deferred[None]:
        """Retrieves a token; fires when that has succeeded or failed."""
        # Where the system has no thread left, this is tried again, as after any failure.
        found = maybeDeferred(self._in_thread, retrieve, self._login)
        return found.addCallbacks(self._loaded, self._failed)

    def stop(self) -> None:
        """Retrieves no more."""
        self._is_stopped = True
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _loaded(self, found: AccessToken) -> None:
        left_ms = found.expires_wall_ms - self._runtime.wall_ms()
        if left_ms <= 0:
            self._not_loaded("it has expired already")
            return
        self._token, self._trouble = found, "the last one expired"
        self._next(max(1.0, left_ms / 1000 * WINDOW))

    def _failed(self, failure: Failure) -> None:
        self._not_loaded(str(failure.value))

    def _not_loaded(self, trouble: str) -> None:
        self._trouble = trouble
        token = self._token
        holds = token is not None and token.expires_wall_ms > self._runtime.wall_ms()
        _logger.warn(
            "{setting}: no access token from {url} ({trouble}); {then}",
            setting=_SETTING,
            url=self._login.url,
            trouble=trouble,
            then="the former one is used until it expires"
            if holds
            else "until there is one this node cannot log in to others",
        )
        self._next(AGAIN_SECONDS)

    def _next(self, seconds: float) -> None:
        if not self._is_stopped:
            self._timer = self._runtime.clock.callLater(seconds, self.load)
