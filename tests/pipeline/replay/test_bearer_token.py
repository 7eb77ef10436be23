"""Tokens of our own connections: from a file, from an issuer, and what is refused in one line."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import ClientConfig
from replog_pipeline.replay import bearer_token, secured_socket
from replog_pipeline.replay.bearer_token import HANDLER, HANDLERS, URL, BearerClient
from twisted_broker.cli.tls import make_certificates

SECRET, TOKEN = "s3cret:/", "aaaa.bbbb.cccc"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
LOGIN = {"clientId": "archiver", "clientSecret": SECRET, "scope": "a b"}
GOOD = (200, json.dumps({"access_token": TOKEN}).encode())


def config(url: str, **more: str) -> ClientConfig:
    given = {URL: url, HANDLER: HANDLERS[0]} | more
    return ClientConfig(tuple(given.items()))


class Issuer:
    """Answers each request with the next of `answers`, the last of them for ever."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answers: list[tuple[int, bytes]] = [GOOD]
        self.asked: list[tuple[Any, bytes]] = []
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                issuer.asked.append((self.headers, body))
                status, text = (
                    issuer.answers.pop(0) if len(issuer.answers) > 1 else issuer.answers[0]
                )
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", issuer.url)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.server.server_port}/token"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.stop()


def fetched(url: str, options: dict[str, str] | None = None, **more: str) -> str:
    return bearer_token.fetched(
        config(url, **more),
        LOGIN if options is None else options,
        secured_socket.tls_context,
        waits.append,
    )


waits: list[float] = []


@pytest.fixture(autouse=True)
def no_waits() -> None:
    waits.clear()


def test_the_message_has_token_and_extensions() -> None:
    """RFC 7628, section 3.1."""
    found = BearerClient(TOKEN, {"b": "2", "a": "1"})
    assert found.first() == b"n,,\x01auth=Bearer aaaa.bbbb.cccc\x01a=1\x01b=2\x01\x01"
    assert found.respond(b"") is None and found.complete


def no_tls(config: ClientConfig) -> ssl.SSLContext:
    raise AssertionError(config)


def test_a_refusal_is_answered_and_never_complete() -> None:
    found = BearerClient(TOKEN, {})
    found.first()
    assert found.respond(b'{"status":"invalid_token"}') == b"\x01" and not found.complete


def test_a_token_of_a_file(tmp_path: Path) -> None:
    """Read for every connection: it may have been replaced."""
    file = tmp_path / "a token"
    url = file.as_uri()
    for text in (TOKEN, "dddd.eeee.ffff"):
        file.write_text(f"{text}\n")
        line = f'{MODULE} required extension_cluster="one";'
        client = ClientConfig(
            (
                *config(url).properties,
                ("security.protocol", "SASL_PLAINTEXT"),
                ("sasl.mechanism", "OAUTHBEARER"),
                ("sasl.jaas.config", line),
            )
        )
        found = secured_socket.mechanism(client)
        assert found is not None
        assert found.first() == f"n,,\x01auth=Bearer {text}\x01cluster=one\x01\x01".encode()


@pytest.mark.parametrize("text", ["", "two words", "a\x01auth=Bearer b", "\u00e9"])
def test_what_is_no_token(tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(PipelineError, match=f"{URL}: what is there is no token"):
        fetched((tmp_path / "f").as_uri())


def test_a_token_of_an_issuer(issuer: Issuer) -> None:
    """RFC 6749, section 4.4."""
    assert fetched(issuer.url) == TOKEN
    headers, body = issuer.asked[0]
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == (
        f"archiver:{SECRET}".encode()
    )
    assert body == b"grant_type=client_credentials&scope=a+b"
    assert headers["Accept"] == "application/json"
    fetched(issuer.url, **{"sasl.oauthbearer.header.urlencode": "true"})
    headers, _ = issuer.asked[1]
    assert base64.b64decode(headers["Authorization"][6:]) == b"archiver:s3cret%3A%2F"


def test_an_issuer_that_fails_for_a_moment(issuer: Issuer) -> None:
    issuer.answers = [(503, b""), (500, b""), GOOD]
    assert fetched(issuer.url) == TOKEN and waits == [0.1, 0.2]


def test_an_issuer_that_stays_away(issuer: Issuer) -> None:
    issuer.answers = [(503, SECRET.encode())]
    with pytest.raises(PipelineError, match=r"does not answer \(HTTP 503\)") as error:
        fetched(issuer.url)
    assert 10 <= sum(waits) < 20 and SECRET not in str(error.value)


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(PipelineError, match=r"does not answer \(Connection refused\)"):
        fetched(f"http://127.0.0.1:{port}/token")


def test_an_issuer_that_speaks_no_http() -> None:
    """Each time it ends the connection without a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listening.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(PipelineError, match="the issuer does not answer"):
            fetched(f"http://127.0.0.1:{port}/token")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ((401, b"no: s3cret:/"), "refused .HTTP 401.: see clientId"),
        ((302, b""), "refused .HTTP 302."),
        ((200, b"<html>"), "no access_token"),
        ((200, b"[]"), "no access_token"),
        ((200, b'{"access_token": 7}'), "no access_token"),
        ((200, b"[" * 100_000), "no access_token"),
        ((200, b'{"access_token": "a b"}'), "no token"),
    ],
)
def test_what_the_issuer_may_answer(issuer: Issuer, answer: tuple[int, bytes], line: str) -> None:
    issuer.answers = [answer]
    with pytest.raises(PipelineError, match=line) as error:
        fetched(issuer.url)
    assert SECRET not in str(error.value) and len(issuer.asked) == 1


def test_the_issuers_certificate_is_checked(tmp_path: Path) -> None:
    make_certificates(tmp_path / "tls")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls" / "broker.pem")
    issuer = Issuer(context)
    trusted = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tmp_path / "tls" / "ca.pem"),
    }
    try:
        assert fetched(issuer.url, LOGIN | trusted) == TOKEN
        with pytest.raises(PipelineError, match="the issuer's certificate is not accepted"):
            fetched(issuer.url)
    finally:
        issuer.stop()


@pytest.mark.parametrize(
    ("changed", "options", "line"),
    [
        ({HANDLER: "x.Y"}, LOGIN, f"{HANDLER}: .* set it"),
        ({HANDLER: ""}, LOGIN, f"{HANDLER}: .* set it"),
        ({URL: "ftp://h/t"}, LOGIN, f"{URL}: write file:///PATH"),
        ({URL: ""}, LOGIN, f"{URL}: write file:///PATH"),
        ({URL: "file:///nowhere/t"}, LOGIN, "/nowhere/t: No such file"),
        ({URL: "http://h:x/"}, LOGIN, "no URL that can be opened"),
        ({}, {"clientId": "a"}, r'clientSecret="\.\.\." is missing'),
        ({}, {"clientSecret": SECRET}, r'clientId="\.\.\." is missing'),
        ({"sasl.oauthbearer.scope": "x"}, LOGIN, "does not know it; write clientId"),
        ({"sasl.oauthbearer.client.credentials.client.id": "x"}, LOGIN, "does not know it"),
        ({"sasl.oauthbearer.jwt.retriever.class": "x"}, LOGIN, "does not know it"),
        ({"sasl.oauthbearer.assertion.file": "x"}, LOGIN, "does not know it"),
    ],
)
def test_what_is_wrong_is_one_line(
    changed: dict[str, str], options: dict[str, str], line: str
) -> None:
    given = dict(config("http://127.0.0.1:1/t").properties) | changed
    with pytest.raises(PipelineError, match=line) as error:
        bearer_token.fetched(ClientConfig(tuple(given.items())), options, no_tls, wait=waits.append)
    assert SECRET not in str(error.value)
