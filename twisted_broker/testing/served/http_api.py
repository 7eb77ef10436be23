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
from pathlib import Path
from typing import Any

from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.http import Request
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

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
_HOME = Path(__file__).parent
_PAGES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_POLICY = "default-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'none'"
_EVENT_SECONDS = 0.5
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
            return _say(request, 403, {"error": refusal})
        if request.method == b"POST" and path.startswith("/v1/"):
            return self._verb(request, path.removeprefix("/v1/"))
        if request.method == b"GET" and path in _PAGES:
            return _page(request, *_PAGES[path])
        if request.method == b"GET" and path == "/v1/state":
            return self._call(request, Verb("state", "state", ""), {})
        if request.method == b"GET" and path == "/v1/events":
            return self._events.follow(request)
        if request.method == b"GET" and path == "/openapi.json":
            return _say(request, 200, openapi())
        if request.method == b"GET" and path == "/v1/cluster":
            return _say(request, 200, self._found)
        if path.startswith(("/subjects", "/schemas", "/config", "/mode", "/compatibility")):
            return self._of_registry(request, path)
        known = "POST /v1/VERB, GET /v1/cluster, /openapi.json, /subjects, /schemas, /config"
        return _say(request, 404, {"error": f"there is no {path} here: there are {known}"})

    def _verb(self, request: Any, name: str) -> Any:
        verb = VERBS.get(name)
        if verb is None:
            error = f"there is no verb {name!r}: there are {', '.join(sorted(VERBS))}"
            return _say(request, 404, {"error": error})
        try:
            arguments = arguments_of(verb, _body(request))
        except Refused as error:
            return _say(request, 400, {"error": str(error)})
        return self._call(request, verb, arguments)

    def _call(self, request: Any, verb: Verb, arguments: dict[str, Any]) -> Any:
        gone: list[Any] = []
        request.notifyFinish().addErrback(gone.append)

        def done(result: Any) -> None:
            if isinstance(result, Failure):
                status, content = _error(result)
            else:
                status, content = 200, answered(verb, result)
            if not gone:
                request.write(_say(request, status, content))
                request.finish()

        self._calls.call(verb.call, arguments).addBoth(done)
        return NOT_DONE_YET

    def _of_registry(self, request: Any, path: str) -> bytes:
        try:
            body = _body(request)
        except Refused as error:
            return _say(request, 422, {"error_code": 42201, "message": str(error)}, _REGISTRY)
        # As they are written: the name of a subject may have a slash.
        parts = [_unquoted(each) for each in request.uri.decode().partition("?")[0].split("/")]
        status, content = self._registry.answer(request.method.decode(), parts[1:], body)
        return _say(request, status, content, _REGISTRY)


class _Events:
    """The state for all that follow it, where it has changed; twice a second at most. Nothing is
    asked while nobody does.
    """

    def __init__(self, reactor: Any, calls: Calls) -> None:
        self._reactor, self._calls = reactor, calls
        self._followers: dict[Any, bytes] = {}
        """what each was sent last"""
        self._is_asking = False

    def follow(self, request: Any) -> Any:
        request.setHeader("content-type", "text/event-stream")
        request.setHeader("cache-control", "no-store")
        self._followers[request] = b""
        request.notifyFinish().addBoth(lambda _: self._followers.pop(request, None))
        if not self._is_asking:
            self._ask()
        return NOT_DONE_YET

    def _ask(self) -> None:
        self._is_asking = bool(self._followers)
        if self._is_asking:
            self._calls.call("state", {}).addBoth(self._asked)

    def _asked(self, result: Any) -> None:
        if not isinstance(result, Failure):  # it is being restored, or it is gone
            event = b"data: " + json.dumps(result).encode() + b"\n\n"
            for request, last in [*self._followers.items()]:
                if event != last:
                    self._followers[request] = event
                    request.write(event)
        self._reactor.callLater(_EVENT_SECONDS, self._ask)


def _page(request: Any, name: str, kind: str) -> bytes:
    request.setHeader("content-type", kind)
    request.setHeader("content-security-policy", _POLICY)
    return (_HOME / name).read_bytes()


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


def _say(request: Any, status: int, content: Any, kind: str = "application/json") -> bytes:
    request.setResponseCode(status)
    request.setHeader("content-type", kind)
    return json.dumps(content).encode()
