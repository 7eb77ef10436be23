"""A schema registry in memory: as much of Confluent's API as serializers use.

Owns `SchemaRegistry`: subjects, versions, ids, and how compatible versions must be (`NONE` alone:
none is refused because of another).

1. A schema has one id wherever it is registered; ids and versions begin with 1, and are never given
   again.
2. Schemas are taken as text: nothing in them is checked. The text is compared as JSON where it is
   JSON.

Pure. Source: Confluent Schema Registry API v1. Not here: HTTP (`http_api.py`).
"""

from __future__ import annotations

import json
from typing import Any

Answer = tuple[int, Any]
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403
_INVALID_SCHEMA, _INVALID_LEVEL = 42201, 42203


class _Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class SchemaRegistry:
    """`answer` takes a request apart: method, path, body."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, dict[int, int]] = {}
        self._newest: dict[str, int] = {}

    def answer(self, method: str, path: list[str], body: Any) -> Answer:
        """Status and content."""
        try:
            return 200, self._answered(method, path, body)
        except _Refused as error:
            return error.code // 100, {"error_code": error.code, "message": str(error)}

    def _answered(self, method: str, path: list[str], body: Any) -> Any:
        match method, *path:
            case "GET", "subjects":
                return [name for name, versions in self._subjects.items() if versions]
            case "GET", "subjects", subject, "versions":
                return [*self._versions(subject)]
            case "GET", "subjects", subject, "versions", version:
                return self._version(subject, version)
            case "GET", "subjects", subject, "versions", version, "schema":
                return json.loads(self._version(subject, version)["schema"])
            case "POST", "subjects", subject, "versions":
                return self._register(subject, body)
            case "POST", "subjects", subject:
                return self._known(subject, body)
            case "DELETE", "subjects", subject:
                return [*self._subjects.pop(subject, self._versions(subject))]
            case "DELETE", "subjects", subject, "versions", version:
                found = self._version(subject, version)["version"]
                del self._subjects[subject][found]
                return found
            case "GET", "schemas", "types":
                return ["AVRO", "JSON", "PROTOBUF"]
            case "GET", "schemas", "ids", number:
                return self._schema(number)
            case "GET", "schemas", "ids", number, "versions" | "subjects" as what:
                return self._places(number, what)
            case "GET", "config", *_:
                return {"compatibilityLevel": "NONE"}
            case "PUT", "config", *_:
                return self._configured(body)
            case "GET", "mode", *_:
                return {"mode": "READWRITE"}
            case "POST", "compatibility", *_:
                return {"is_compatible": True}
        raise _Refused(40400, f"there is no {method} /{'/'.join(path)} in this registry")

    def _configured(self, body: Any) -> Any:
        level = body.get("compatibility") if isinstance(body, dict) else None
        if level != "NONE":
            raise _Refused(_INVALID_LEVEL, f"this registry compares no schemas: NONE, not {level}")
        return {"compatibility": "NONE"}

    def _versions(self, subject: str) -> dict[int, int]:
        """Ids by version."""
        found = self._subjects.get(subject)
        if not found:
            raise _Refused(_NO_SUBJECT, f"Subject '{subject}' not found.")
        return found

    def _version(self, subject: str, version: str) -> dict[str, Any]:
        versions = self._versions(subject)
        number = max(versions) if version in ("latest", "-1") else _number(version)
        if number not in versions:
            raise _Refused(_NO_VERSION, f"Version {version} not found.")
        return self._described(subject, number)

    def _described(self, subject: str, version: int) -> dict[str, Any]:
        number = self._subjects[subject][version]
        found = self._schemas[number]
        return {"subject": subject, "version": version, "id": number, "schemaType": "AVRO", **found}

    def _register(self, subject: str, body: Any) -> dict[str, Any]:
        text, schema = _of(body)
        number = self._ids.setdefault(text, len(self._ids) + 1)
        self._schemas[number] = schema
        versions = self._subjects.setdefault(subject, {})
        for version, known in versions.items():
            if known == number:
                return self._described(subject, version)
        version = self._newest[subject] = self._newest.get(subject, 0) + 1
        versions[version] = number
        return self._described(subject, version)

    def _known(self, subject: str, body: Any) -> dict[str, Any]:
        number = self._ids.get(_of(body)[0])
        for version, known in self._versions(subject).items():
            if known == number:
                return self._described(subject, version)
        raise _Refused(_NO_SCHEMA, "Schema not found")

    def _schema(self, number: str) -> dict[str, Any]:
        if _number(number) not in self._schemas:
            raise _Refused(_NO_SCHEMA, f"Schema {number} not found")
        return self._schemas[int(number)]

    def _places(self, number: str, what: str) -> list[Any]:
        self._schema(number)
        found = [
            {"subject": subject, "version": version}
            for subject, versions in self._subjects.items()
            for version, known in versions.items()
            if known == int(number)
        ]
        return found if what == "versions" else [each["subject"] for each in found]


def _number(text: str) -> int:
    return int(text) if text.isdigit() else -1


def _of(body: Any) -> tuple[str, dict[str, Any]]:
    """What makes a schema the same one, and the schema."""
    if not isinstance(body, dict) or not isinstance(body.get("schema"), str):
        raise _Refused(_INVALID_SCHEMA, "the body has no schema, which is text")
    schema = {"schema": body["schema"]}
    if body.get("schemaType", "AVRO") != "AVRO":
        schema["schemaType"] = body["schemaType"]
    if body.get("references"):
        schema["references"] = body["references"]
    try:
        same: Any = json.loads(body["schema"])
    except ValueError:
        same = body["schema"]
    return json.dumps([same, schema.get("schemaType"), schema.get("references")]), schema
