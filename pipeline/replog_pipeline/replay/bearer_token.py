"""OAUTHBEARER of our own connections: a token from a file or from its issuer, and the message that
carries it.

1. A token is fetched for every connection and kept nowhere: one that is about to expire is never
   used again.
2. Only `OAuthBearerLoginCallbackHandler` is known, Kafka's handler for signed tokens. Unsecured
   ones, which Kafka's client makes without it, are refused; no class is loaded by its name.
3. A refusal of the issuer is a PipelineError at once. An issuer that does not answer is tried
   again for `PATIENCE_SECONDS`. A redirect is refused: it would carry the secret elsewhere.
4. No error holds a token, a secret or what the issuer said.

Source: RFC 7628, RFC 6749 (4.4); Kafka's `OAuthBearerLoginCallbackHandler`, `HttpJwtRetriever`,
`FileJwtRetriever`. Not here: whether a token is good (the broker says), assertions (KIP-1139; the
connector's client does not know them).
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import ClientConfig

MECHANISM = "OAUTHBEARER"
URL = "sasl.oauthbearer.token.endpoint.url"
HANDLER = "sasl.login.callback.handler.class"
PACKAGE = "org.apache.kafka.common.security.oauthbearer."
HANDLERS = tuple(f"{PACKAGE}{part}OAuthBearerLoginCallbackHandler" for part in ("", "secured."))
LATER = re.compile(
    r"sasl\.oauthbearer\.(client\.credentials\.|assertion\.|jwt\.retriever\.class$|scope$)"
)
PATIENCE_SECONDS = 10.0
FIRST_WAIT_SECONDS = 0.1
MOST_BYTES = 1 << 17
TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
EXTENSION = "extension_"

TlsContext = Callable[[ClientConfig], ssl.SSLContext]


class BearerClient:
    """One authentication."""

    name = MECHANISM

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        more = "".join(f"{name}={value}\x01" for name, value in sorted(extensions.items()))
        self._first = f"n,,\x01auth=Bearer {token}\x01{more}\x01".encode()
        self.complete = False

    def first(self) -> bytes:
        return self._first

    def respond(self, token: bytes) -> bytes | None:
        """To a refusal an empty message: the broker then says in an error what is wrong."""
        self.complete = not token
        return b"\x01" if token else None


def client(config: ClientConfig, options: Mapping[str, str], context: TlsContext) -> BearerClient:
    """With a new token. `options`: those of `sasl.jaas.config`; `context`: TLS to the issuer, by
    the `ssl.` options among them. Raises PipelineError.
    """
    extensions = {
        name.removeprefix(EXTENSION): value
        for name, value in options.items()
        if name.startswith(EXTENSION)
    }
    return BearerClient(fetched(config, options, context), extensions)


def fetched(
    config: ClientConfig,
    options: Mapping[str, str],
    context: TlsContext,
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """A token. Raises PipelineError."""
    url = checked(config)
    parts = urlsplit(url)
    if parts.scheme == "file":
        return usable(from_file(unquote(parts.path)))
    try:
        user, secret = options["clientId"], options["clientSecret"]
    except KeyError as error:
        raise PipelineError(
            f'sasl.jaas.config: {error.args[0]}="..." is missing, which {URL} needs'
        ) from None
    request = token_request(config, url, user, secret, options.get("scope"))
    handlers: list[urllib.request.BaseHandler] = [NoRedirect()]
    if parts.scheme == "https":
        of_issuer = ClientConfig(tuple((n, v) for n, v in options.items() if n.startswith("ssl.")))
        handlers.append(urllib.request.HTTPSHandler(context=context(of_issuer)))
    return usable(token_in(answered(request, urllib.request.build_opener(*handlers), wait)))


def checked(config: ClientConfig) -> str:
    """The URL. PipelineError for what is missing, or known to later clients only."""
    for name, _ in config.properties:
        if LATER.match(name):
            raise PipelineError(
                f"{name}: the connector's Kafka client (3.9) does not know it; write clientId, "
                "clientSecret and scope as options into sasl.jaas.config"
            )
    if config.get(HANDLER) not in HANDLERS:
        raise PipelineError(f"{HANDLER}: OAUTHBEARER is done with {HANDLERS[0]} only; set it")
    url = config.get(URL)
    if urlsplit(url).scheme not in ("file", "http", "https"):
        raise PipelineError(f"{URL}: write file:///PATH of a token, or the https:// of its issuer")
    return url


def from_file(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES).decode("utf-8", "replace").strip()
    except OSError as error:
        raise PipelineError(f"{URL} file://{path}: {error.strerror or error}") from None


def usable(token: str) -> str:
    """Raises PipelineError for one that would break the message."""
    if not TOKEN.fullmatch(token):
        raise PipelineError(f"{URL}: what is there is no token")
    return token


def token_request(
    config: ClientConfig, url: str, user: str, secret: str, scope: str | None
) -> urllib.request.Request:
    if config.get("sasl.oauthbearer.header.urlencode", "false").lower() == "true":
        user, secret = quote_plus(user), quote_plus(secret)
    basic = base64.b64encode(f"{user}:{secret}".encode()).decode()
    body = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    return urllib.request.Request(  # noqa: S310  `checked` knows the scheme
        url,
        urlencode(body).encode(),
        {
            "Accept": "application/json",
            "Authorization": f"Basic {basic}",
            "Content-Type": "application/x-www-form-urlencoded",
        },
    )


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect becomes an HTTPError."""

    def redirect_request(self, *_: Any) -> None:
        return None


def answered(
    request: urllib.request.Request,
    opener: urllib.request.OpenerDirector,
    wait: Callable[[float], None],
) -> bytes:
    """What the issuer answers; it is tried again, 0.1, 0.2, 0.4 ... s later, while it fails."""
    spent, pause = 0.0, FIRST_WAIT_SECONDS
    while True:
        try:
            with opener.open(request, timeout=PATIENCE_SECONDS) as answer:
                return bytes(answer.read(MOST_BYTES))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500:
                raise PipelineError(
                    f"{URL}: the issuer refused (HTTP {error.code}): see clientId, clientSecret "
                    "and scope in sasl.jaas.config"
                ) from None
            failure = f"HTTP {error.code}"
        except OSError as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise PipelineError(
                    f"{URL}: the issuer's certificate is not accepted ({reason.verify_message}): "
                    "see ssl.truststore.location as an option in sasl.jaas.config"
                ) from None
            failure = str(getattr(reason, "strerror", None) or reason)
        except (ValueError, http.client.InvalidURL):
            raise PipelineError(f"{URL}: it is no URL that can be opened") from None
        except http.client.HTTPException as error:
            failure = type(error).__name__
        if spent >= PATIENCE_SECONDS:
            raise PipelineError(f"{URL}: the issuer does not answer ({failure}): does it run?")
        wait(pause)
        spent, pause = spent + pause, pause * 2


def token_in(answer: bytes) -> str:
    """Raises PipelineError."""
    try:
        found = json.loads(answer)["access_token"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, str):
        raise PipelineError(f"{URL}: the issuer's answer has no access_token")
    return found
