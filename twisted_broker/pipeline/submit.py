"""`replog pipeline submit`: the same job under `spark-submit`, with the jars it needs and this
Python as the driver's.

1. What stands before the job's name is spark-submit's (--master, --conf ...), what follows is the
   job's. Nothing of it is read here.
2. spark-submit is that of SPARK_HOME, else PySpark's own. This process becomes it: signals and the
   exit status are the job's.
3. The cluster's machines need the package too (installed, or `--archives` with a packed
   environment), and must reach the brokers' advertised addresses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from twisted_broker.pipeline import session
from twisted_broker.pipeline.errors import PipelineError
from twisted_broker.pipeline.machine import jars, java

AS_THEY_ARE = {"ignore_unknown_options": True, "allow_interspersed_args": False}
JOBS = ("archive", "replay", "audit", "compare", "report")


def spark_submit(environment: Mapping[str, str]) -> Path:
    """The program. Raises PipelineError if there is none."""
    session.check_spark()
    import pyspark

    home = environment.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    program = Path(home) / "bin" / "spark-submit"
    if not program.exists():
        raise PipelineError(
            f"SPARK_HOME: {home} has no bin/spark-submit; unset it to use PySpark's"
        )
    return program


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(what is spark-submit's, the job with its own). Raises PipelineError without a job."""
    for position, argument in enumerate(arguments):
        if argument in JOBS:
            return list(arguments[:position]), list(arguments[position:])
    raise PipelineError(
        "submit: no job among the arguments; write submit [OPTIONS OF SPARK-SUBMIT] JOB [ITS "
        f"OPTIONS], JOB one of {', '.join(JOBS)}"
    )


def command_line(program: Path, arguments: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """What is executed. More jars that the caller names are kept."""
    options, job = split(arguments)
    named = [
        options[position + 1] for position, option in enumerate(options[:-1]) if option == "--jars"
    ]
    together = ",".join([*map(str, paths), *named])
    return [
        str(program),
        *options,
        "--jars",
        together,
        str(Path(__file__).with_name("__main__.py")),
        *job,
    ]


@click.command(
    "submit",
    context_settings=AS_THEY_ARE,
    add_help_option=False,
    options_metavar="[OPTIONS OF SPARK-SUBMIT]",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="JOB [ITS OPTIONS]")
@click.pass_context
def command(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Run one of these jobs on a cluster, through spark-submit, whose options stand before the job.

    \b
    replog pipeline submit --master spark://HOST:7077 --executor-memory 4g \\
      archive --from kafka://HOST:9092/TOPIC --to s3a://BUCKET/TABLE
    """
    if arguments[:1] in (("-h",), ("--help",)):
        click.echo(ctx.get_help())
        return
    program = spark_submit(os.environ)
    line = command_line(program, arguments, [])
    found = jars.provide(jars.ALL, lambda said: click.echo(said, err=True))
    line = command_line(program, arguments, found)
    own = {"PYSPARK_DRIVER_PYTHON": sys.executable, "JAVA_HOME": str(java.find().for_spark())}
    os.execve(program, line, {"PYSPARK_PYTHON": sys.executable} | os.environ | own)
