"""How a secured cluster is reached: the properties of a Java client, as all of Kafka's tools take
them.

Owns `--kafka-config FILE` and `--kafka-option NAME=VALUE`.

1. Everything that connects gets the same properties: Spark's connector and the admin client as they
   are, our own connections (`replay.connection`) what they understand of them.
2. What a job must decide itself (offsets, groups, deserializers, the address) is refused before
   Spark starts, as is a property without a value.

Source: Kafka's client configuration, the `kafka.` options of Spark's connector. Not here: what the
properties of TLS and SASL mean (`replay.secured_socket`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from replog_pipeline.errors import PipelineError
from replog_pipeline.kafka_cluster import ClientConfig
from twisted_broker.settings import PropertiesError, client_properties

F = TypeVar("F", bound=Callable[..., Any])

OWN = {
    "bootstrap.servers": "the address is in the kafka:// URL",
    "group.id": "the jobs keep their place in the table, not in a group",
    "enable.auto.commit": "no offset is committed",
    "auto.offset.reset": "the jobs know their offsets",
    "isolation.level": "use --read-committed",
    "key.deserializer": "records stay bytes",
    "value.deserializer": "records stay bytes",
    "key.serializer": "records stay bytes",
    "value.serializer": "records stay bytes",
    "interceptor.classes": "Spark's connector allows none",
}


def client_options(command: F) -> F:
    """Both options; the command gets `client`, a ClientConfig."""

    def given(context: click.Context, parameter: click.Parameter, lines: tuple[str, ...]) -> Any:
        return client_config(context.params.pop("kafka_config", None), lines)

    option = click.option(
        "--kafka-option",
        "client",
        multiple=True,
        metavar="NAME=VALUE",
        callback=given,
        help="One such property; it wins over the file.",
    )
    file = click.option(
        "--kafka-config",
        metavar="FILE",
        is_eager=True,
        expose_value=True,
        help="Properties of a Java client (security.protocol, sasl.jaas.config, ..).",
    )
    return file(option(command))


def client_config(path: str | None, lines: Iterable[str] = ()) -> ClientConfig:
    """From a file and from single options, which win. Raises PipelineError."""
    found = from_file(path) if path else {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            # The text is not repeated: it may be a secret.
            raise PipelineError("--kafka-option: write NAME=VALUE, as security.protocol=SASL_SSL")
        found[name.strip()] = value.strip()
    checked(found, "--kafka-config" if path and not lines else "--kafka-option")
    return ClientConfig(tuple(found.items()))


def from_file(path: str) -> dict[str, str]:
    try:
        return client_properties(Path(path).read_bytes())
    except OSError as error:
        raise PipelineError(f"--kafka-config {path}: {error.strerror or error}") from None
    except PropertiesError as error:
        raise PipelineError(f"--kafka-config {path}: {error}") from None


def checked(properties: Mapping[str, str], setting: str) -> None:
    for name in properties:
        if name in OWN:
            raise PipelineError(f"{setting}: {name} cannot be set: {OWN[name]}")
