"""What `--decode` was told: the encoding, where its schemas are, and whether values are framed.

1. A schema comes from a file or from a registry, never from both. Values are framed with a registry
   and plain with a file, unless `--framing` says so for a file.
2. It goes to Spark's workers as it is; its text has no secret.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from replog_pipeline.errors import PipelineError
from replog_pipeline.values.avro import AvroSchema
from replog_pipeline.values.json_schema import JsonSchema
from replog_pipeline.values.protobuf import ProtobufSchema, file_set
from replog_pipeline.values.registry import AnySchema, Registry
from twisted_broker.installed import install

OPTIONS = ("--schema", "--schema-registry", "--subject", "--message", "--framing")
PREFIX = "schema.registry."
CREDENTIALS = "basic.auth.credentials.source"


@dataclass(frozen=True)
class Decoding:
    """`kind`: json, avro or protobuf. `schema`: a file's content, or a registry. `place`: of the
    file, for errors. `subjects`: none means that of each topic, TOPIC-value.
    """

    kind: str
    schema: bytes | Registry
    place: str = ""
    framed: bool = False
    subjects: tuple[str, ...] = ()
    message: str | None = None

    def from_file(self) -> AnySchema:
        """The file's schema. PipelineError."""
        assert isinstance(self.schema, bytes)
        if self.kind == "protobuf":
            return ProtobufSchema(file_set(self.schema, self.place), self.place, self.message)
        try:
            text = self.schema.decode()
        except UnicodeDecodeError:
            raise PipelineError(f"{self.place} is no text: name a schema of {self.kind}") from None
        return (AvroSchema if self.kind == "avro" else JsonSchema)(text, self.place)


def decoding(
    kind: str | None,
    file: str | None = None,
    registry: str | None = None,
    config: Sequence[tuple[str, str]] = (),
    framing: str | None = None,
    subjects: Sequence[str] = (),
    message: str | None = None,
) -> Decoding | None:
    """What the command line chose, None without `--decode`. PipelineError for a choice that cannot
    be, or a library that is missing.
    """
    given = (file, registry, *subjects, message, framing, *config)
    if kind is None:
        if any(given):
            raise PipelineError(
                f"{', '.join(OPTIONS)} say how values are decoded: name the encoding with --decode"
            )
        return None
    if bool(file) == bool(registry):
        raise PipelineError(f"--decode {kind}: name one of --schema FILE and --schema-registry URL")
    if message and kind != "protobuf":
        raise PipelineError("--message: only Protobuf has messages")
    check_libraries(kind, registry)
    if registry:
        if framing == "none":
            raise PipelineError("--framing none: without the id of its schema use --schema FILE")
        source = Registry(checked_url(registry), properties(config))
        return Decoding(kind, source, "", True, tuple(subjects), message)
    if subjects or config:
        raise PipelineError("--subject and --schema-registry-config: of --schema-registry alone")
    assert file is not None
    found = Decoding(kind, content(file), f"--schema {file}", framing == "confluent", (), message)
    found.from_file()
    return found


def content(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise PipelineError(f"--schema {file}: {error.strerror or error}") from None


def checked_url(url: str) -> str:
    """PipelineError unless it is one; a password in it would be shown."""
    for each in url.split(","):
        try:
            parts = urlsplit(each.strip())
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if "@" in each:  # also in what is no URL: it would be repeated
            raise PipelineError(
                "--schema-registry: no user in the URL: write basic.auth.user.info into a file for "
                "--schema-registry-config"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise PipelineError(f"--schema-registry {each}: write http://HOST:PORT")
    return url


def properties(config: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """As the client takes them: without the prefix that Java's clients have, and without what
    says where basic.auth.user.info is.
    """
    found = {name.removeprefix(PREFIX): value for name, value in config}
    if found.pop(CREDENTIALS, "USER_INFO") != "USER_INFO":
        raise PipelineError(
            f"--schema-registry-config: {CREDENTIALS} must be USER_INFO, with basic.auth.user.info"
        )
    if "url" in found:
        raise PipelineError("--schema-registry-config: the address is that of --schema-registry")
    return tuple(found.items())


def check_libraries(kind: str, registry: str | None) -> None:
    """PipelineError that names what to install."""
    try:
        if kind == "avro":
            import fastavro  # noqa: F401
        if kind == "protobuf":
            import google.protobuf  # noqa: F401
        if registry:
            import confluent_kafka.schema_registry  # noqa: F401
    except ImportError as error:
        raise PipelineError(f"--decode {kind} needs {error.name}: {install('decode')}") from None
