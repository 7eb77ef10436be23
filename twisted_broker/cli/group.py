"""The group of the command line: its own commands, and those that other distributions bring.

1. A distribution names its command under the entry point group `replog.commands`. Nothing of it is
   imported before its command or the list of commands is wanted.
2. A command that one of our own distributions brings, and that is not installed, is one line that
   says how to install it, with exit status 2.
"""

from __future__ import annotations

from importlib.metadata import EntryPoints, entry_points
from importlib.util import find_spec

import click

from twisted_broker.installed import install

GROUP = "replog.commands"
EXTRAS = {"pipeline": "spark"}
"""The commands of our other distributions, and the extra that brings each."""


class NotInstalledError(click.ClickException):
    """A command that comes with a distribution which is not installed: one line, status 2."""

    exit_code = 2


def brought() -> EntryPoints:
    """What the installed distributions name."""
    return entry_points(group=GROUP)


class CommandGroup(click.Group):
    """The commands of `replog`: its own, and those that other distributions add."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Those that can be had."""
        there = [entry.name for entry in brought() if find_spec(entry.module.partition(".")[0])]
        return sorted({*super().list_commands(ctx), *there})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        own = super().get_command(ctx, name)
        if own is not None:
            return own
        for entry in brought().select(name=name):
            try:
                command: click.Command = entry.load()
            except ModuleNotFoundError as error:
                if error.name != entry.module.partition(".")[0]:
                    raise
                continue  # pip's record of a checkout that is gone
            return command
        if name in EXTRAS:
            raise NotInstalledError(f"{name} is not installed: {install(EXTRAS[name])}")
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        missing = sorted(set(EXTRAS) - set(self.list_commands(ctx)))
        if missing:
            with formatter.section("Not installed"):
                formatter.write_dl([(name, install(EXTRAS[name])) for name in missing])
