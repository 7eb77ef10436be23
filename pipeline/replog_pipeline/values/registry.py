"""Schemas of a registry, by Confluent's client (`confluent-kafka[schemaregistry]`).

1. A schema id that the registry does not know is None; a registry that does not answer, or refuses
   us, is an error: its records are not at fault.
2. A schema never changes under its id: it is kept. That an id is unknown is not: it may come.
3. No value of a property is in an error or in the text of `Registry`.

Source: Confluent's "Schema Registry API reference". Not here: the frame in which ids come
(`framing`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from replog_pipeline.errors import (
    REGISTRY_AWAY,
    PipelineError,
    RegistryAwayError,
    RegistryError,
    text_of,
)
from replog_pipeline.values.avro import AvroSchema
from replog_pipeline.values.convert import SCHEMA, ConvertError
from replog_pipeline.values.json_schema import JsonSchema
from replog_pipeline.values.protobuf import ProtobufSchema
from twisted_broker.installed import install

T = TypeVar("T")
AnySchema = AvroSchema | JsonSchema | ProtobufSchema

KINDS = {"json": "JSON", "avro": "AVRO", "protobuf": "PROTOBUF"}
PATIENCE = {"timeout": 10.0, "max.retries": 3, "retries.wait.ms": 250}
"""Seconds for an answer; four tries within about two seconds."""
NOT_FOUND = (40401, 40402, 40403)
"""Its error codes: no such subject, version, schema."""
MOST_REFERENCES = 200
ROOT = "value.proto"


@dataclass(frozen=True)
class Registry:
    """Where it is, and the properties of its client. May go to other processes."""

    url: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def open(self, kind: str, message: str | None = None) -> OpenRegistry:
        return OpenRegistry(self, kind, message)


class OpenRegistry:
    """A connection, and the schemas of `kind` that it brought."""

    def __init__(self, registry: Registry, kind: str, message: str | None) -> None:
        self.registry, self.kind, self.message = registry, kind, message
        self.format = "serialized" if kind == "protobuf" else None
        self.known: dict[int, AnySchema | ConvertError] = {}

    @cached_property
    def client(self) -> Any:
        """PipelineError for properties that the client does not take."""
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError:
            raise PipelineError(
                f"--schema-registry: its client is not installed: {install('decode')}"
            ) from None
        try:
            return SchemaRegistryClient(
                {"url": self.registry.url, **PATIENCE, **dict(self.registry.properties)}
            )
        except (ValueError, TypeError, OSError) as error:
            raise PipelineError(f"--schema-registry-config: {text_of(error)}") from None

    def by_id(self, number: int) -> AnySchema | None:
        """None for an id that is not there. ConvertError for a schema that reads no value,
        RegistryError.
        """
        if number not in self.known:
            found = self.asked(lambda: self.client.get_schema(number, fmt=self.format))
            if found is None:
                return None
            try:
                self.known[number] = self.made(found, f"schema {number}")
            except RegistryError:
                raise
            except PipelineError:
                self.known[number] = ConvertError(SCHEMA)
        schema = self.known[number]
        if isinstance(schema, ConvertError):
            raise schema
        return schema

    def versions(self, subject: str) -> list[AnySchema]:
        """All versions of a subject, the oldest first. PipelineError where there is none."""
        numbers = self.asked(lambda: self.client.get_versions(subject))
        if not numbers:
            raise PipelineError(
                f"--schema-registry {self.registry.url} has no subject {subject}: name the one of "
                "this topic with --subject"
            )
        found = []
        for number in sorted(numbers):
            version = self.version(subject, number)
            if version is None:
                continue  # deleted meanwhile
            schema = self.known.get(version.schema_id)
            if schema is None:
                schema = self.made(version.schema, f"subject {subject}, version {number}")
                self.known[version.schema_id] = schema
            if not isinstance(schema, ConvertError):
                found.append(schema)
        return found

    def version(self, subject: str, number: int, *, deleted: bool = False) -> Any:
        """A RegisteredSchema, None where there is none."""
        return self.asked(
            lambda: self.client.get_version(subject, number, deleted=deleted, fmt=self.format)
        )

    def made(self, found: Any, where: str) -> AnySchema:
        place = f"{where} of {self.registry.url}"
        kind = found.schema_type or "AVRO"
        if kind != KINDS[self.kind]:
            raise PipelineError(f"--decode {self.kind}: {place} is {kind}")
        texts: dict[str, str] = {}
        self.referenced(found, texts, place)
        if self.kind == "protobuf":
            files = [descriptor(text, name, place) for name, text in texts.items()]
            return ProtobufSchema(
                [*files, descriptor(found.schema_str, ROOT, place)], place, self.message
            )
        schema = AvroSchema if self.kind == "avro" else JsonSchema
        return schema(found.schema_str, place, tuple(texts.values()))

    def referenced(self, schema: Any, texts: dict[str, str], place: str) -> None:
        """The texts of what a Schema refers to, by the name in it; what others name first."""
        for each in schema.references or ():
            if each.name in texts:
                continue
            if len(texts) == MOST_REFERENCES:
                raise PipelineError(f"{place} names more than {MOST_REFERENCES} other schemas")
            version = self.version(each.subject, each.version, deleted=True)
            if version is None:
                raise PipelineError(f"{place} names {each.name}, which is not there")
            self.referenced(version.schema, texts, place)
            texts[each.name] = version.schema.schema_str

    def asked(self, call: Callable[[], T]) -> T | None:
        """The answer, None for "not found". RegistryError."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return call()
        except SchemaRegistryError as error:
            if error.error_code in NOT_FOUND:
                return None
            said = f"HTTP status {error.http_status_code}"
            if error.http_status_code >= 500 or error.http_status_code in (408, 429):
                raise self.away(said) from None
            raise RegistryError(
                f"--schema-registry {self.registry.url} refuses the request: {said}; see "
                "--schema-registry-config"
            ) from None
        except PipelineError:
            raise
        except Exception as error:
            # The client raises its HTTP library's errors, and what a strange answer makes of it.
            raise self.away(f"{type(error).__name__}: {text_of(error)}") from None

    def away(self, why: str) -> RegistryAwayError:
        return RegistryAwayError(f"{REGISTRY_AWAY} (--schema-registry {self.registry.url}): {why}")


def descriptor(text: str, name: str, place: str) -> bytes:
    """A serialized file descriptor as a registry serves it, under the name that others import."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        raise PipelineError(f"{place} is not served as a file descriptor") from None
    found.name = name
    content: bytes = found.SerializeToString()
    return content
