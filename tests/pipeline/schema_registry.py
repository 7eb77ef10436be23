"""A schema registry for tests: of Confluent's API what a reader needs, over HTTP."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Registered:
    """One schema: `references` are (name, subject, version)."""

    number: int
    kind: str
    text: str
    references: Sequence[tuple[str, str, int]] = ()

    def body(self) -> dict[str, Any]:
        named = [
            {"name": name, "subject": subject, "version": version}
            for name, subject, version in self.references
        ]
        kind = {} if self.kind == "AVRO" else {"schemaType": self.kind}
        return {"schema": self.text, **kind, **({"references": named} if named else {})}


@dataclass
class SchemaRegistry:
    """`user`: "NAME:PASSWORD" that every request must have; `status`: answered to all
    if set, or to what is below the path `down`.
    """

    user: str | None = None
    status: int | None = None
    down: str = ""
    schemas: dict[int, Registered] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    url: str = ""

    def register(self, subject: str, kind: str, text: str, *references: Any) -> int:
        """The id of the next version of `subject`; that of a schema that is there stays."""
        known = [each.number for each in self.schemas.values() if each.text == text]
        number = known[0] if known else len(self.schemas) + 1
        self.schemas[number] = Registered(number, kind, text, references)
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str) -> tuple[int, Any]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if self.status is not None and path.startswith(self.down):
            return self.status, {"error_code": self.status, "message": "planned"}
        if parts[:2] == ["schemas", "ids"]:
            found = self.schemas.get(int(parts[2]))
            return (200, found.body()) if found else missing(40403, "Schema not found")
        if parts[0] != "subjects" or parts[1] not in self.subjects:
            return missing(40401, "Subject not found")
        numbers = self.subjects[parts[1]]
        if len(parts) == 3:
            return 200, list(range(1, len(numbers) + 1))
        version = len(numbers) if parts[3] == "latest" else int(parts[3])
        if not 0 < version <= len(numbers):
            return missing(40402, "Version not found")
        found = self.schemas[numbers[version - 1]]
        head = {"subject": parts[1], "version": version, "id": found.number}
        return 200, head | found.body()


def missing(code: int, message: str) -> tuple[int, Any]:
    return 404, {"error_code": code, "message": message}


@contextmanager
def serving(registry: SchemaRegistry) -> Iterator[SchemaRegistry]:
    """Answers at `registry.url` while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.paths.append(self.path)
            status, body = registry.answer(urlsplit(self.path).path)
            if registry.user is not None:
                expected = f"Basic {base64.b64encode(registry.user.encode()).decode()}"
                if self.headers.get("Authorization") != expected:
                    status, body = 401, {"error_code": 401, "message": "Unauthorized"}
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def framed(number: int, value: bytes) -> bytes:
    """As Confluent's serializers write it."""
    return b"\0" + number.to_bytes(4, "big") + value
