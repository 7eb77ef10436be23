"""`replog pipeline`: the group of the jobs' commands, each loaded when it is run.

1. `replog --help` and `replog pipeline --help` import no Spark; without Spark a command is one line
   that says how to install it.
2. Exit status: 0 all is well, 1 findings, 2 anything else; that is one line on standard error,
   whatever was raised.
   `--traceback` shows the stack before it.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import traceback as stacks
from pathlib import Path
from typing import Any, NoReturn

import click

from replog_pipeline.errors import TRACEBACK, JobFailedError, PipelineError, line_of
from twisted_broker.installed import install

PACKAGE, PY4J = "replog_pipeline", "py4j"
COMMANDS = {
    "archive": (
        ".jobs.archive.command",
        "Copy a topic into a partitioned Delta or Parquet table, each record exactly once.",
    ),
    "replay": (
        ".jobs.replay.command",
        (
            "Produce a table or a log directory back into a topic: keys, headers, timestamps, "
            "partitions, order."
        ),
    ),
    "maintain": (
        ".jobs.maintain.command",
        "Merge the small files of a table, remove what killed runs left behind.",
    ),
    "forget": (
        ".jobs.forget.command",
        "Delete all records of some keys from a Delta table, for good.",
    ),
    "audit": (
        ".jobs.audit.command",
        "Look for gaps, duplicates, sequence jumps, damaged batches and hanging transactions.",
    ),
    "compare": (
        ".jobs.compare.command",
        "Compare the replicas in several log directories up to the high watermark.",
    ),
    "report": (".jobs.report.command", "Show what is in a topic, as tables and as an HTML page."),
    "sql": (
        ".jobs.sql.command",
        "Query topics, log directories and tables as views, with Spark SQL.",
    ),
    "demo": (
        ".demo.command",
        "A year of flights through a cluster, into a table, back into a topic, into a table again.",
    ),
    "submit": (".submit", "Run one of these jobs on a cluster, through spark-submit."),
    "jars": (".machine.jars_command", "Fetch the jars that Spark needs for Kafka and Delta, once."),
    "doctor": (
        ".machine.doctor",
        "Say what is missing on this machine, and the command that cures it.",
    ),
}


class Jobs(click.Group):
    """Commands by name; a module is imported when its command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        try:
            command: click.Command = importlib.import_module(
                PACKAGE + COMMANDS[name][0], PACKAGE
            ).command
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(("twisted_broker", "replog_pipeline")):
                raise
            raise PipelineError(f"{error.name} is not installed: {install('spark')}") from None
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except (click.NoSuchOption, click.BadOptionUsage, click.BadParameter) as error:
            stop(f"{error.format_message()} ({ctx.command_path} --help lists what there is)")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])
        if importlib.util.find_spec("pyspark") is None:
            with formatter.section("Spark is not installed"):
                formatter.write_text(install("spark"))

    def invoke(self, ctx: click.Context) -> Any:
        if not ctx.params.get("traceback"):
            without_py4j()
        try:
            return super().invoke(ctx)
        except click.exceptions.Exit:
            raise
        except click.UsageError as error:
            where = error.ctx.command_path if error.ctx else ctx.command_path
            stop(f"{error.format_message()} ({where} --help lists what there is)")
        except click.ClickException as error:
            stop(error.format_message())
        except (Exception, KeyboardInterrupt) as error:
            if ctx.params.get("traceback"):
                click.echo("".join(stacks.format_exception(error)), err=True, nl=False)
            told = (
                ""
                if isinstance(error, PipelineError | KeyboardInterrupt | click.Abort)
                and not isinstance(error, JobFailedError)
                else f"; {TRACEBACK}=1 shows the stack"
            )
            stop(f"{'interrupted' if isinstance(error, click.Abort) else line_of(error)}{told}")


def without_py4j() -> None:
    """It logs the stack of what it raises, by its own logger and by the root's."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    root, last = logging.getLogger(), logging.lastResort
    if not root.handlers and last is not None:  # else the root gets one that shows all
        last.addFilter(lambda record: PY4J not in Path(record.pathname).parts)
        root.addHandler(last)


def stop(line: str) -> NoReturn:
    click.echo(f"replog pipeline: {' '.join(line.split())}", err=True)
    raise click.exceptions.Exit(2)


@click.command("pipeline", cls=Jobs)
@click.option(
    "--traceback",
    is_flag=True,
    envvar=TRACEBACK,
    help=f"When a job fails, show the stack too; also by {TRACEBACK}=1.",
)
def pipeline(traceback: bool) -> None:
    """Topics as tables: archive, replay, audit, compare and report, on Spark.

    `doctor` says whether this machine can.
    """
    if traceback:
        os.environ[TRACEBACK] = "1"  # for the job that `submit` starts
