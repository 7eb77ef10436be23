"""Commands of other distributions: found by their entry points, and one line where they are not."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, EntryPoints

import click
import pytest
from click.testing import CliRunner

from twisted_broker.cli import group
from twisted_broker.cli.main import main
from twisted_broker.installed import install


@click.command("weather")
def weather() -> None:
    """Tell the weather."""
    click.echo("sunny")


def bring(patch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    """In place of what is installed."""
    brought = EntryPoints(EntryPoint(name, value, group.GROUP) for name, value in entries)
    patch.setattr(group, "entry_points", lambda group: brought)


def test_a_command_of_another_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    bring(monkeypatch, ("weather", f"{__name__}:weather"))
    assert CliRunner().invoke(main, ["weather"]).output == "sunny\n"
    listed = CliRunner().invoke(main, ["--help"]).output
    assert re.search(r"^  weather +Tell the weather\.$", listed, re.M) and "  verify  " in listed


def test_a_command_of_our_own_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    bring(monkeypatch, ("verify", f"{__name__}:weather"))
    assert "DIRECTORY" in CliRunner().invoke(main, ["verify", "--help"]).output


@pytest.mark.parametrize("entries", [[], [("pipeline", "gone_meanwhile.cli:pipeline")]])
def test_a_command_that_is_not_installed_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch, entries: list[tuple[str, str]]
) -> None:
    bring(monkeypatch, *entries)
    for arguments in (["pipeline"], ["pipeline", "archive", "--help"]):
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 2
        assert done.output == f"Error: pipeline is not installed: {install('spark')}\n"
    listed = CliRunner().invoke(main, ["--help"])
    assert listed.exit_code == 0
    assert install("spark") in " ".join(listed.output.split())


def test_an_unknown_command_is_a_wrong_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    bring(monkeypatch)
    done = CliRunner().invoke(main, ["verfy"])
    assert done.exit_code == 2 and "No such command 'verfy'" in done.output


def test_own_commands_look_for_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look through what is installed takes time."""
    monkeypatch.delattr(group, "entry_points")
    assert CliRunner().invoke(main, ["verify", "--help"]).exit_code == 0
