"""Numbers of the command line are read as settings are, in every option and argument."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from replog_pipeline.cli import pipeline
from twisted_broker.cli.main import main
from twisted_broker.cli.number_types import Number, WholeNumber

PYTHONS = (click.types.IntParamType, click.types.FloatParamType)


def parameters(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    """Of it, and of the commands below it."""
    yield from ((f"{path} {each.name}", each) for each in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from parameters(below, f"{path} {name}")


def numeric() -> dict[str, click.Parameter]:
    found = [*parameters(main, "replog"), *parameters(pipeline, "replog pipeline")]
    return {path: each for path, each in found if isinstance(each.type, PYTHONS)}


def test_every_number_is_of_these_types() -> None:
    found = numeric()
    assert {"replog mirror refresh", "replog pipeline archive max_records"} <= found.keys()
    assert [
        path for path, each in found.items() if not isinstance(each.type, WholeNumber | Number)
    ] == []


@pytest.mark.parametrize("text", ["1_0", " 10", "10 ", "", "1.", "nan", "inf", "\U00011fff"])
def test_a_whole_number_is_digits(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no whole number"):
        WholeNumber(0, 99).convert(text, None, None)


@pytest.mark.parametrize("text", ["1_0", " 10", "10 ", "", "nan", "inf", "infinity", "1_0.0"])
def test_a_number_is_as_javas(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no number"):
        Number(0, 99).convert(text, None, None)


@pytest.mark.parametrize(("text", "number"), [("10", 10.0), ("1e1", 10.0), (".5", 0.5)])
def test_what_is_a_number_is_taken(text: str, number: float) -> None:
    assert Number(0, 99).convert(text, None, None) == number
    assert WholeNumber(0, 99).convert("+10", None, None) == 10
    assert WholeNumber(0, 99).convert(7, None, None) == 7


def test_a_range_still_bounds() -> None:
    for kind, text in ((WholeNumber(0, 99), "100"), (Number(0, 99), "Infinity")):
        with pytest.raises(click.BadParameter, match="not in the range"):
            kind.convert(text, None, None)


def test_a_wrong_number_is_one_line_with_status_2() -> None:
    done = CliRunner().invoke(main, ["explain", "t", "1_0"])
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].endswith("'1_0' is no whole number")
