"""The access token of this node: from a file or an endpoint, renewed in time, and never shown."""

from __future__ import annotations

import json
import socket
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from twisted_broker.broker_config import BrokerConfig
from twisted_broker.net import access_tokens, jwks
from twisted_broker.net.access_tokens import AGAIN_SECONDS, AccessTokens, retrieve
from twisted_broker.security.sasl import jaas
from twisted_broker.security.sasl.access_token import MOST_CHARACTERS, OAuthLogin, parse_token
from twisted_broker.security.sasl.errors import SaslFailure
from twisted_broker.security.sasl.settings import client_login
from twisted_broker.security.security_protocol import SASL_TO_BROKERS
from twisted_broker.settings import ConfigError

BEGAN = 1_700_000_000


def jwt(expires: Any, **more: Any) -> str:
    parts = ({"alg": "RS256"}, {"sub": "node", "exp": expires} | more)
    texts = [urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts]
    return ".".join((*texts, "c2lnbmF0dXJl"))


def tokens(login: OAuthLogin) -> tuple[AccessTokens, Clock]:
    clock = Clock()
    runtime: Any = SimpleNamespace(
        clock=clock, wall_ms=lambda: int((BEGAN + clock.seconds()) * 1000)
    )
    return AccessTokens(login, runtime, maybeDeferred), clock


def test_a_token_of_a_file_is_read_again_before_it_expires(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    made, clock = tokens(OAuthLogin(file.as_uri()))
    with capturedLogs() as logs:
        made.load()
    (line,) = map(formatEvent, logs)
    assert line is not None and "sasl.oauthbearer.token.endpoint.url" in line
    assert "cannot log in to others" in line and "\n" not in line
    with pytest.raises(SaslFailure, match="no access token"):
        made.text()
    file.write_text(f" {jwt(BEGAN + 110)}\n")
    clock.advance(AGAIN_SECONDS)
    first = made.text()
    assert first == jwt(BEGAN + 110)
    file.write_text(jwt(BEGAN + 300))
    clock.advance(79)  # of 100 s that are left
    assert made.text() == first
    clock.advance(1.5)
    assert made.text() == jwt(BEGAN + 300)
    file.unlink()
    with capturedLogs() as logs:
        clock.advance(170)
    assert "the former one is used" in str(formatEvent(logs[0])) and made.text()
    clock.pump([AGAIN_SECONDS] * 5)
    with pytest.raises(SaslFailure):  # fails closed
        made.text()
    made.stop()
    assert not clock.getDelayedCalls()


def test_a_token_for_which_there_is_no_thread_comes_later(tmp_path: Path) -> None:
    """A node that asks no more is shut out by all others when its token expires."""
    file, clock, is_short = tmp_path / "token", Clock(), [True]
    file.write_text(jwt(BEGAN + 1000))
    runtime: Any = SimpleNamespace(
        clock=clock, wall_ms=lambda: int((BEGAN + clock.seconds()) * 1000)
    )

    def in_thread(*arguments: Any) -> Any:
        if is_short[0]:
            raise RuntimeError("can't start new thread")
        return maybeDeferred(*arguments)

    made = AccessTokens(OAuthLogin(file.as_uri()), runtime, in_thread)
    with capturedLogs() as logs:
        made.load()
    assert "can't start new thread" in str(formatEvent(logs[0]))
    is_short[0] = False
    clock.advance(AGAIN_SECONDS)
    assert made.text()
    made.stop()


def test_what_expired_already_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(jwt(BEGAN))
    made, _ = tokens(OAuthLogin(file.as_uri()))
    made.load()
    with pytest.raises(SaslFailure, match="expired"):
        made.text()
    made.stop()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b",
        "a.b.c.d",
        "eyJ.eyJ.\x01auth=x",
        jwt(None),
        jwt("soon"),
        jwt(True),
        jwt(-1),
        jwt(1e300),
        jwt(float("nan")),
        f"a.{urlsafe_b64encode(b'[' * 5000).decode().rstrip('=')}.c",
        jwt(BEGAN, more="x" * MOST_CHARACTERS),
    ],
)
def test_what_is_no_token(text: str) -> None:
    with pytest.raises(ValueError, match=r"token") as refused:
        parse_token(text)
    assert len(str(refused.value)) < 100 and "\x01" not in str(refused.value)


class Endpoint(BaseHTTPRequestHandler):
    """Answers what the server has as `answer`: (status, body)."""

    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers["Authorization"], parse_qs(body)))
        status, text = self.server.answer
        self.send_response(status)
        if status == 307:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[Any]:
    server: Any = HTTPServer(("127.0.0.1", 0), Endpoint)
    server.asked, server.answer = [], (200, b"")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_client_credentials(endpoint: Any) -> None:
    url = f"http://127.0.0.1:{endpoint.server_port}/token"
    login = OAuthLogin(url, "node 1", "top-secret", "kafka x")
    text = jwt(BEGAN + 5)
    endpoint.answer = 200, json.dumps({"access_token": text, "expires_in": 5}).encode()
    assert retrieve(login) == (text, (BEGAN + 5) * 1000)
    ((path, authorization, body),) = endpoint.asked
    assert path == "/token"
    assert authorization == "Basic " + b64encode(b"node 1:top-secret").decode()
    assert body == {b"grant_type": [b"client_credentials"], b"scope": [b"kafka x"]}
    assert "top-secret" not in repr(login) and text not in repr(retrieve(login))


def test_a_secret_without_tls_stays_on_the_machine(
    endpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No proxy of the environment gets it."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    endpoint.answer = 200, json.dumps({"access_token": jwt(BEGAN)}).encode()
    assert retrieve(OAuthLogin(f"http://127.0.0.1:{endpoint.server_port}/", "id", "s"))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"top-secret", "status 401"),
        (500, b"", "status 500"),
        (307, b"", "status 307"),  # the secret goes nowhere else
        (200, b"", "holds no access_token"),
        (200, b"[1]", "holds no access_token"),
        (200, b'{"access_token": 7}', "holds no access_token"),
        (200, b'{"access_token": "top-secret"}', "no signed token"),
        (200, b" " * (1 << 20) + b"{}", "longer than"),
    ],
)
def test_answers_without_a_token(endpoint: Any, status: int, body: bytes, words: str) -> None:
    endpoint.answer = status, body
    login = OAuthLogin(f"http://127.0.0.1:{endpoint.server_port}/", "id", "top-secret")
    with pytest.raises((OSError, ValueError), match=words) as refused:
        retrieve(login)
    assert "top-secret" not in str(refused.value) and len(endpoint.asked) == 1


def test_what_is_no_http_is_not_shown() -> None:
    """Python's own error holds the line that came, and its end."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"top-secret\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="no HTTP") as refused:
            retrieve(OAuthLogin(f"http://127.0.0.1:{server.getsockname()[1]}/", "id", "s"))
        thread.join()
    assert "top-secret" not in str(refused.value) and "\n" not in str(refused.value)


@contextmanager
def dripping() -> Iterator[str]:
    """The URL of an endpoint whose answer never ends in time."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                for _ in range(200):
                    connection.sendall(b" ")
                    if done.wait(0.02):
                        return

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        done.set()
        thread.join()


def test_an_answer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start waits for it, and no byte of it is late. Keys are no different."""
    for module in (access_tokens, jwks):
        monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.2)
    with dripping() as url, pytest.raises(OSError, match="is not all here within"):
        retrieve(OAuthLogin(url, "id", "s"))
    with dripping() as url, pytest.raises(OSError, match="is not all here within"):
        jwks.fetch(url)


PREFIX = "listener.name.inside.oauthbearer."
CREDENTIALS = {
    f"{PREFIX}sasl.jaas.config": f"{jaas.OAUTHBEARER} required "
    'clientId="a" clientSecret="top-secret" scope="s";'
}
ENDPOINT, RETRIEVER = (
    f"{PREFIX}sasl.oauthbearer.{name}" for name in ("token.endpoint.url", "jwt.retriever.class")
)
CLASSES = "org.apache.kafka.common.security.oauthbearer."


def logins(**more: str) -> list[OAuthLogin]:
    values = {"node.id": "1", SASL_TO_BROKERS: "OAUTHBEARER"} | more
    found: list[OAuthLogin] = []

    def source(login: OAuthLogin) -> Callable[[], str]:
        found.append(login)
        return lambda: "t.o.k"

    config = BrokerConfig(values).listener_config("INSIDE")
    made = client_login(config, SASL_TO_BROKERS, source)
    assert made("nonce").first() == b"n,,\x01auth=Bearer t.o.k\x01\x01"
    return found


def test_where_settings_say_that_a_token_is() -> None:
    handler = f"{CLASSES}OAuthBearerLoginCallbackHandler"
    assert logins(
        **{ENDPOINT: "file:///t", f"{PREFIX}sasl.login.callback.handler.class": handler}
    ) == [OAuthLogin("file:///t")]
    assert logins(**{ENDPOINT: "file:///t", RETRIEVER: f"{CLASSES}FileJwtRetriever"})
    url = "https://issuer.example/token"
    assert logins(**CREDENTIALS, **{ENDPOINT: url}) == [OAuthLogin(url, "a", "top-secret", "s")]
    own = {
        f"{PREFIX}sasl.oauthbearer.client.credentials.client.id": "b",
        f"{PREFIX}sasl.oauthbearer.client.credentials.client.secret": "other",
        f"{PREFIX}sasl.oauthbearer.scope": "t",
    }
    assert logins(**CREDENTIALS, **own, **{ENDPOINT: url}) == [OAuthLogin(url, "b", "other", "t")]
    assert logins(**own, **{ENDPOINT: url, RETRIEVER: f"{CLASSES}ClientCredentialsJwtRetriever"})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "sasl.oauthbearer.token.endpoint.url"),
        ({ENDPOINT: "/etc/token"}, "token.endpoint.url"),
        ({ENDPOINT: "http://issuer.example/token", **CREDENTIALS}, "the https URL"),
        ({ENDPOINT: "http://localhost.example/token", **CREDENTIALS}, "the https URL"),
        ({ENDPOINT: "https://issuer.example/token"}, "clientId= and clientSecret="),
        (
            {ENDPOINT: "https://i/t", RETRIEVER: f"{CLASSES}FileJwtRetriever", **CREDENTIALS},
            "FileJwtRetriever takes",
        ),
        ({ENDPOINT: "file:///t", RETRIEVER: f"{CLASSES}JwtBearerJwtRetriever"}, "no class is ever"),
        ({ENDPOINT: "file:///t", RETRIEVER: "com.example.Mine"}, "no class is ever loaded"),
        (
            {ENDPOINT: "file:///t", f"{PREFIX}sasl.login.callback.handler.class": "com.example.M"},
            "no class is ever loaded",
        ),
    ],
)
def test_settings_without_a_token_are_refused(values: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        logins(**values)
    assert "\n" not in str(refused.value) and "top-secret" not in str(refused.value)
