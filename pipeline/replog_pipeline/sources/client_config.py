"""How a secured cluster is reached: the properties of a Java client, as all of Kafka's tools take
them.

Owns `--kafka-config FILE` and `--kafka-option NAME=VALUE`, and the same with `--from-` for the
source of a replay.

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
    "group.id": "the jobs keep their place in the table; see `archive --group`",
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
    return options_named("", "client", "Properties of a Java client (sasl.jaas.config, ..).")(
        command
    )


def source_client_options(command: F) -> F:
    """`--from-kafka-config` and `--from-kafka-option`; the command gets `source_client`, empty
    where neither is given.
    """
    return options_named(
        "from-", "source_client", "Such properties for --from alone, when it is another cluster."
    )(command)


def options_named(prefix: str, parameter: str, help: str) -> Callable[[F], F]:
    """The pair `--PREFIXkafka-config` and `--PREFIXkafka-option`."""
    name = f"{prefix.replace('-', '_')}kafka_config"

    def given(context: click.Context, option: click.Parameter, lines: tuple[str, ...]) -> Any:
        return client_config(context.params.pop(name, None), lines, prefix)

    option = click.option(
        f"--{prefix}kafka-option",
        parameter,
        multiple=True,
        metavar="NAME=VALUE",
        callback=given,
        help="One such property; it wins over the file.",
    )
    file = click.option(
        f"--{prefix}kafka-config",
        name,
        metavar="FILE",
        is_eager=True,
        expose_value=True,
        help=help,
    )
    return lambda command: file(option(command))


def client_config(path: str | None, lines: Iterable[str] = (), prefix: str = "") -> ClientConfig:
    """From a file and from single options, which win. Raises PipelineError that names the option,
    `--PREFIXkafka-..`.
    """
    file, option = f"--{prefix}kafka-config", f"--{prefix}kafka-option"
    found = from_file(path, file) if path else {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            # The text is not repeated: it may be a secret.
            raise PipelineError(f"{option}: write NAME=VALUE, as security.protocol=SASL_SSL")
        found[name.strip()] = value.strip()
    checked(found, file if path and not lines else option)
    return ClientConfig(tuple(found.items()))


def from_file(path: str, setting: str = "--kafka-config") -> dict[str, str]:
    try:
        return client_properties(Path(path).read_bytes())
    except OSError as error:
        raise PipelineError(f"{setting} {path}: {error.strerror or error}") from None
    except PropertiesError as error:
        raise PipelineError(f"{setting} {path}: {error}") from None


def checked(properties: Mapping[str, str], setting: str) -> None:
    for name in properties:
        if name in OWN:
            raise PipelineError(f"{setting}: {name} cannot be set: {OWN[name]}")
