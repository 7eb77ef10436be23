"""The options of `archive` that turn values into columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from replog_pipeline.sources.client_config import from_file

F = TypeVar("F", bound=Callable[..., Any])

CONFIG = "--schema-registry-config"
OPTIONS = (
    click.option(
        "--decode",
        type=click.Choice(["json", "avro", "protobuf"]),
        help="Values into typed columns: value_decoded, or decode_error with the reason.",
    ),
    click.option(
        "--schema",
        metavar="FILE",
        help="JSON Schema, Avro schema, or descriptor set (protoc --descriptor_set_out).",
    ),
    click.option(
        "--schema-registry",
        metavar="URL",
        help="Schemas by the ids before the values (Confluent's wire format).",
    ),
    click.option(
        CONFIG,
        "registry_config",
        metavar="FILE",
        help="Properties of the registry's client (basic.auth.user.info, ssl.ca.location, ..).",
    ),
    click.option(
        "--subject",
        "subjects",
        multiple=True,
        metavar="NAME",
        help="Whose versions make the columns; TOPIC-value unless said.",
    ),
    click.option(
        "--message", metavar="NAME", help="The Protobuf message; the first one unless said."
    ),
    click.option(
        "--framing",
        type=click.Choice(["confluent", "none"]),
        help="With --schema FILE: whether values begin with a registry's schema id; none.",
    ),
)


def decode_options(command: F) -> F:
    """The options; the command gets `decoding`, a Decoding or None."""

    @wraps(command)
    def called(
        decode: str | None,
        schema: str | None,
        schema_registry: str | None,
        registry_config: str | None,
        subjects: tuple[str, ...],
        message: str | None,
        framing: str | None,
        **others: Any,
    ) -> Any:
        found = None
        if any((decode, schema, schema_registry, registry_config, subjects, message, framing)):
            from replog_pipeline.values.settings import decoding

            config = from_file(registry_config, CONFIG) if registry_config else {}
            found = decoding(
                decode,
                schema,
                schema_registry,
                tuple(config.items()),
                framing,
                subjects,
                message,
            )
        return command(decoding=found, **others)

    for option in reversed(OPTIONS):
        option(called)
    return called  # type: ignore[return-value]
