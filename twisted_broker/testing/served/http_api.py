"""The HTTP server of `replog cluster`: verbs, the OpenAPI document, the page, the schema registry.

Owns the resources.

1. Loopback only, and only for programs: a page of another site can send nothing here, as a body
   must be declared as JSON, and the `Host` be this one.
2. 200 with what the verb gives; 400 what cannot be; 409 what the cluster cannot do; 504 what did
   not happen in time: each with `{"error": TEXT}`.

Ring 2. Source: our own. Not here: what can be asked (`verbs.py`).
"""

from __future__ import annotations

import json
from typing import Any

from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import Request
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from twisted_broker.status.live_page import file_of, policy
from twisted_broker.testing.served.calls import Calls
from twisted_broker.testing.served.schema_registry import SchemaRegistry
from twisted_broker.testing.served.verbs import (
    VERBS,
    Refused,
    Verb,
    answered,
    arguments_of,
    openapi,
)
from twisted_broker.testing.template_client import ClusterError, ClusterTimeout

_HOSTS = {"127.0.0.1", "localhost", "::1"}
_TYPES = ("application/json", "application/vnd.schemaregistry")
_REGISTRY = "application/vnd.schemaregistry.v1+json"
_PAGES = {"/": "page.html", "/page.js": "page.js", "/icon.svg": "icon.svg"}
_EVENT_SECONDS, _MOST_EVENTS = 0.5, 500
# What asks, and changes nothing that a page would have to explain.
_ASKS = {"anomalies", "exchanges", "group", "hits", "leader", "records", "wait_for_hits"}
_ASKS |= {"produce", "wait_until"}
_logger = Logger(namespace="replog.testing")


class Api(Resource):
    """`found`: what `GET /v1/cluster` gives."""

    isLeaf = True  # noqa: N815  Twisted's

    def __init__(self, reactor: Any, calls: Calls, found: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._events = _Events(reactor, calls)
        self._calls, self._found, self._registry = calls, found, SchemaRegistry()

    def render(self, request: Any) -> Any:
        path = request.path.decode()
        refusal = _refusal(request)
        if refusal:
            return _response(request, 403, {"error": refusal})
        if request.method == b"POST" and path.startswith("/v1/"):
            return self._verb(request, path.removeprefix("/v1/"))
        if request.method == b"GET" and path in _PAGES:
            return _page(request, _PAGES[path])
        if request.method == b"GET" and path == "/v1/state":
            return self._state(request)
        if request.method == b"GET" and path == "/v1/events":
            return self._events.follow(request)
        if request.method == b"GET" and path == "/openapi.json":
            return _response(request, 200, openapi())
        if request.method == b"GET" and path == "/v1/cluster":
            return _response(request, 200, self._found)
        if path.startswith(("/subjects", "/schemas", "/config", "/mode", "/compatibility")):
            return self._of_registry(request, path)
        known = "POST /v1/VERB, GET /v1/cluster, /openapi.json, /subjects, /schemas, /config"
        return _response(request, 404, {"error": f"there is no {path} here: there are {known}"})

    def _verb(self, request: Any, name: str) -> Any:
        verb = VERBS.get(name)
        if verb is None:
            error = f"there is no verb {name!r}: there are {', '.join(sorted(VERBS))}"
            return _response(request, 404, {"error": error})
        try:
            body = _body(request)
            arguments = arguments_of(verb, body)
        except Refused as error:
            return _response(request, 400, {"error": str(error)})
        return self._call(request, verb, arguments, body)

    def _state(self, request: Any) -> Any:
        version = (request.args.get(b"since") or [b"0"])[0]
        of = (request.args.get(b"of") or [b""])[0].decode(errors="replace")
        if not version.isdigit():
            return _response(request, 400, {"error": f"since is a number, not {version!r}"})
        gone: list[Any] = []
        request.notifyFinish().addErrback(gone.append)

        def done(result: Any) -> None:
            if not gone:
                if isinstance(result, Failure):
                    request.write(_response(request, *_error(result)))
                else:
                    request.setHeader("content-type", "application/json")
                    request.write(result["text"].encode())
                request.finish()

        asked = {"version": int(version[:18]), "of": of}
        self._calls.call("state", asked).addBoth(done)
        return NOT_DONE_YET

    def _call(self, request: Any, verb: Verb, arguments: dict[str, Any], body: Any = None) -> Any:
        gone: list[Any] = []
        request.notifyFinish().addErrback(gone.append)

        def done(result: Any) -> None:
            if isinstance(result, Failure):
                status, content = _error(result)
            else:
                status, content = 200, answered(verb, result)
                if verb.call not in _ASKS:
                    self._events.tell(f"{verb.name} {json.dumps(body)}")
            if not gone:
                request.write(_response(request, status, content))
                request.finish()

        self._calls.call(verb.call, arguments).addBoth(done)
        return NOT_DONE_YET

    def _of_registry(self, request: Any, path: str) -> bytes:
        try:
            body = _body(request)
        except Refused as error:
            return _response(request, 422, {"error_code": 42201, "message": str(error)}, _REGISTRY)
        # As they are written: the name of a subject may have a slash.
        parts = [_unquoted(each) for each in request.uri.decode().partition("?")[0].split("/")]
        status, content = self._registry.answer(request.method.decode(), parts[1:], body)
        return _response(request, status, content, _REGISTRY)


class _Events:
    """What changed, for all that follow it, from the beginning on: all there was, then changes, and
    what was asked. Looked at after each verb, and twice a second while somebody follows. It
    begins anew after `_MOST_EVENTS`.
    """

    def __init__(self, reactor: Any, calls: Calls) -> None:
        self._reactor, self._calls = reactor, calls
        self._followers: set[Any] = set()
        self._told: list[bytes] = []
        self._place: tuple[int, str] = 0, ""
        """the version that was told last, and of what process"""
        self._is_asking = self._asks_again = self._follows = False
        self._look()

    def follow(self, request: Any) -> Any:
        request.setHeader("content-type", "text/event-stream")
        request.setHeader("cache-control", "no-store")
        for event in self._told:
            request.write(event)
        self._followers.add(request)
        request.notifyFinish().addBoth(lambda _: self._followers.discard(request))
        if not self._follows:
            self._go_on()
        return NOT_DONE_YET

    def tell(self, text: str) -> None:
        """A sentence, and what came of it."""
        self._write(b"event: said\ndata: " + json.dumps(text).encode() + b"\n\n")
        self._look()

    def _write(self, event: bytes) -> None:
        self._told.append(event)
        for request in self._followers:
            request.write(event)

    def _go_on(self) -> None:
        self._follows = bool(self._followers)
        if self._follows:
            self._look()
            self._reactor.callLater(_EVENT_SECONDS, self._go_on)

    def _look(self) -> None:
        self._asks_again = self._is_asking
        if not self._is_asking:
            self._is_asking = True
            if len(self._told) > _MOST_EVENTS:
                self._told, self._place = [], (0, "")
            version, of = self._place
            self._calls.call("state", {"version": version, "of": of}).addBoth(self._looked)

    def _looked(self, result: Any) -> None:
        self._is_asking = False
        if not isinstance(result, Failure):  # else it is being restored, or it is gone
            self._place = tuple(result["at"])
            if result["has_news"]:
                self._write(b"data: " + result["text"].encode() + b"\n\n")
        if self._asks_again:
            self._look()


def _page(request: Any, name: str) -> bytes:
    kind, content = file_of(name)
    request.setHeader("content-type", kind)
    request.setHeader("content-security-policy", policy())
    return content


def _unquoted(part: str) -> str:
    from urllib.parse import unquote

    return unquote(part)


def _refusal(request: Request) -> str:
    """Why nothing is done for it; empty: it is right."""
    host = request.getRequestHostname()
    name = (host if isinstance(host, str) else host.decode()).strip("[]")
    if name not in _HOSTS:
        return f"the Host {name!r} is none of this machine's: {', '.join(sorted(_HOSTS))}"
    kind = request.getHeader("content-type") or ""
    if request.method in (b"POST", b"PUT") and not kind.startswith(_TYPES):
        return "a body is of Content-Type: application/json"
    return ""


def _body(request: Any) -> Any:
    """Raises Refused."""
    content = request.content.read()
    try:
        return json.loads(content) if content else {}
    except ValueError as error:
        raise Refused(f"the body is no JSON: {error}") from None


def _error(failure: Failure) -> tuple[int, dict[str, str]]:
    if failure.check(ClusterTimeout):
        return 504, {"error": str(failure.value)}
    if failure.check(ClusterError):
        return 409, {"error": str(failure.value)}
    _logger.failure("a verb failed", failure)
    return 500, {"error": str(failure.value)}


def _response(request: Any, status: int, content: Any, kind: str = "application/json") -> bytes:
    request.setResponseCode(status)
    request.setHeader("content-type", kind)
    return json.dumps(content).encode()
