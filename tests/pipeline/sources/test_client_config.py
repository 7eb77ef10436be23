"""`--kafka-config` and `--kafka-option`: what they give, what they refuse, what they never show."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from replog_pipeline.errors import PipelineError
from replog_pipeline.jobs.replay.command import command as replay_command
from replog_pipeline.kafka_cluster import ClientConfig, KafkaCluster
from replog_pipeline.sources import KafkaSource, Wanted, connector, parse
from replog_pipeline.sources.client_config import (
    OWN,
    client_config,
    client_options,
    source_client_options,
)

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required password="s3cret";'


def test_a_file_and_single_options(tmp_path: Path) -> None:
    """As Kafka's tools read them; a single option wins."""
    file = tmp_path / "client.properties"
    file.write_text(
        f"# ours\nsecurity.protocol = SASL_SSL\nsasl.jaas.config={JAAS[:40]}\\\n  {JAAS[40:]}\n"
    )
    found = client_config(str(file), ["security.protocol=SASL_PLAINTEXT", "a=b=c"])
    assert found.get("security.protocol") == "SASL_PLAINTEXT"
    assert found.get("sasl.jaas.config") == JAAS and found.get("a") == "b=c"
    assert found.get("nothing", "else") == "else"


@pytest.mark.parametrize("name", sorted(OWN))
def test_what_a_job_decides_itself_is_refused(name: str) -> None:
    with pytest.raises(PipelineError, match=f"--kafka-option: {name} cannot be set: "):
        client_config(None, [f"{name}=x"])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("security.protocol\n", "line 1: 'security.protocol' has no value"),
        ("a=b\n\ngroup.id=x\n", "--kafka-config: group.id cannot be set"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str, line: str) -> None:
    file = tmp_path / "f"
    file.write_text(text)
    with pytest.raises(PipelineError, match=line):
        client_config(str(file))


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="No such file or directory"):
        client_config(str(tmp_path / "f"))
    (tmp_path / "f").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PipelineError, match="not a text in UTF-8"):
        client_config(str(tmp_path / "f"))


def test_an_option_without_a_value_is_not_repeated() -> None:
    """It may be a password."""
    with pytest.raises(PipelineError, match="write NAME=VALUE") as error:
        client_config(None, ["s3cret"])
    assert "s3cret" not in str(error.value)


def test_a_value_is_never_shown() -> None:
    client = client_config(None, [f"sasl.jaas.config={JAAS}"])
    source = parse("kafka://h:1/t", client=client)
    assert isinstance(source, KafkaSource) and source.client == client
    for shown in (client, source, source.cluster, KafkaCluster("h:1", client)):
        assert "s3cret" not in repr(shown) and "s3cret" not in str(shown)
    assert repr(client) == "ClientConfig(sasl.jaas.config)"


def test_the_connector_gets_all_of_them() -> None:
    source = KafkaSource("h:1", ("t",), ClientConfig((("security.protocol", "SSL"),)))
    options = connector.settings(source, Wanted())
    assert options["kafka.security.protocol"] == "SSL"
    assert options["kafka.bootstrap.servers"] == "h:1"


def test_the_options_of_a_command(tmp_path: Path) -> None:
    """The order in which they are given does not count."""
    file = tmp_path / "f"
    file.write_text("a=1\nb=2\n")
    found: list[ClientConfig] = []

    @click.command()
    @client_options
    def command(client: ClientConfig) -> None:
        found.append(client)

    for arguments in (
        ["--kafka-config", str(file), "--kafka-option", "b=3"],
        ["--kafka-option", "b=3", "--kafka-config", str(file)],
        [],
    ):
        assert CliRunner().invoke(command, arguments, catch_exceptions=False).exit_code == 0
    assert [dict(each.properties) for each in found] == [{"a": "1", "b": "3"}] * 2 + [{}]


def test_the_sources_own_options(tmp_path: Path) -> None:
    """They do not mix with the others, and errors name them."""
    file = tmp_path / "f"
    file.write_text("a=1\n")
    found: list[tuple[ClientConfig, ClientConfig]] = []

    @click.command()
    @client_options
    @source_client_options
    def command(client: ClientConfig, source_client: ClientConfig) -> None:
        found.append((client, source_client))

    for line in (["--from-kafka-config", str(file)], ["--kafka-option", "b=2"]):
        CliRunner().invoke(command, line, catch_exceptions=False)
    assert [(dict(one.properties), dict(other.properties)) for one, other in found] == [
        ({}, {"a": "1"}),
        ({"b": "2"}, {}),
    ]
    for arguments, message in {
        ("--from-kafka-config", str(tmp_path / "g")): "--from-kafka-config .*: No such file",
        ("--from-kafka-option", "group.id=x"): "--from-kafka-option: group.id cannot be set",
    }.items():
        with pytest.raises(PipelineError, match=message):
            CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def test_a_table_has_no_client_properties(tmp_path: Path) -> None:
    line = ["--from", str(tmp_path), "--to", "kafka://127.0.0.1:1/t"]
    with pytest.raises(PipelineError, match=r"--from-kafka-config, .* is no cluster"):
        CliRunner().invoke(
            replay_command, [*line, "--from-kafka-option", "a=b"], catch_exceptions=False
        )
