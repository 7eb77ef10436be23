"""`replog pipeline submit`: the same job under `spark-submit`, with the jars it needs and this
Python as the driver's.

1. The options before the job's name are spark-submit's (--master, --conf ...), those behind it are
   the job's. Of the former only the archives, the jars and the master are read.
2. spark-submit is that of SPARK_HOME, else PySpark's own. This process becomes it: signals and the
   exit status are the job's.
3. The cluster's machines must reach the brokers' advertised addresses, and need the package: in the
   Python of the first of `--archives`, a packed environment, or installed. A path of this machine
   is not what they run: it is the driver's alone.
4. Spark's own log is left out as in the other jobs, unless the user has Spark settings of his own.
5. What the job says of its progress goes to standard error here, too: standard output belongs to
   the result.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import click

from replog_pipeline import session
from replog_pipeline.errors import PipelineError
from replog_pipeline.machine import jars, java
from replog_pipeline.stores import places

PLAIN_PATH = "/usr/local/bin:/usr/bin:/bin"
AS_THEY_ARE = {"ignore_unknown_options": True, "allow_interspersed_args": False}
JOBS = ("archive", "replay", "maintain", "audit", "compare", "report", "sql")
STANDARD_ERROR = "REPLOG_STANDARD_ERROR"
"""The environment's name for the file that the driver's standard error goes to."""


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


def workers_python(options: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Options by which workers take the Python of the packed environment; none without one, or if
    the user names a Python. Raises PipelineError for a form that Spark unpacks to no use.

    Spark starts one and the same command on the workers and, to plan a read of `segments:`, beside
    the driver, where nothing is unpacked. So it is a name, `python3`, and the PATH tells which one.
    The driver's planner is given the workers' PATH too, and a Python that is started by a name
    looks there for the environment it belongs to: so this Python's folder stands second.
    """
    archive = (given(options, "--archives") or configured(options, "spark.archives") or "").split(
        ","
    )[0]
    named = "PYSPARK_PYTHON" in environment or configured(options, "spark.pyspark.python")
    if not archive or named or configured(options, "spark.executorEnv.PATH"):
        return []
    place, _, name = archive.partition("#")
    if place.endswith(".tar"):
        raise PipelineError(
            f"--archives {place}: Spark unpacks a .tar without the permission to execute, so the "
            "workers could not start its Python; pack it as .tar.gz"
        )
    folder = name or place.rpartition("/")[2]
    path = f"./{folder}/bin:{os.path.dirname(sys.executable)}:{PLAIN_PATH}"
    return ["--conf", f"spark.executorEnv.PATH={path}"]


def check_archives(options: Sequence[str]) -> None:
    """PipelineError for an archive on this machine that is not there: Spark says its name only."""
    found = given(options, "--archives") or configured(options, "spark.archives") or ""
    for archive in filter(None, found.split(",")):
        place = archive.partition("#")[0].removeprefix("file://")
        if "://" not in place and not os.path.exists(place):
            raise PipelineError(
                f"--archives {place}: there is no such file: pack the environment first "
                "(docs/PIPELINE.md, On a cluster)"
            )


def drivers_path(environment: Mapping[str, str]) -> dict[str, str]:
    """The driver's `python3` is this one."""
    return {
        "PATH": os.pathsep.join(
            [os.path.dirname(sys.executable), environment.get("PATH", PLAIN_PATH)]
        )
    }


def own_standard_error() -> dict[str, str]:
    """Where the driver finds this process's standard error; empty where the system has no such
    files.
    """
    path = f"/proc/{os.getpid()}/fd/2"
    return {STANDARD_ERROR: path} if os.path.exists(path) else {}


def restore_standard_error(environment: Mapping[str, str]) -> None:
    """For the driver, before it writes anything: Spark starts its Python with standard error
    joined to standard output, so that progress would land amid the result.
    """
    path = environment.get(STANDARD_ERROR)
    if path is None:
        return
    # Not ours to open (a socket; cluster mode: another machine's): both stay joined.
    with contextlib.suppress(OSError):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(opened, 2)
        os.close(opened)


def given(options: Sequence[str], name: str) -> str | None:
    """The last value of an option of spark-submit's, `NAME VALUE` or `NAME=VALUE`."""
    after = [value for option, value in pairwise(options) if option == name]
    inside = [option.partition("=")[2] for option in options if option.startswith(f"{name}=")]
    found = after + inside
    return found[-1] if found else None


def configured(options: Sequence[str], name: str) -> str | None:
    """The last value that `--conf NAME=VALUE` gives."""
    values = [value for option, value in pairwise(options) if option in ("--conf", "-c")]
    values += [option.partition("=")[2] for option in options if option.startswith("--conf=")]
    found = [value.partition("=")[2] for value in values if value.partition("=")[0] == name]
    return found[-1] if found else None


def named(job: Sequence[str]) -> Iterator[str]:
    """What may be a place among a job's arguments: PLACE, --to=PLACE, NAME=PLACE."""
    for word in job:
        yield word
        while "=" in word:
            word = word.partition("=")[2]
            yield word


def java_options(program: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Our log levels for the driver, where nobody set others: by SPARK_CONF_DIR, in Spark's own
    folder, or in SPARK_SUBMIT_OPTS.
    """
    own = environment.get("SPARK_SUBMIT_OPTS", "")
    if (
        "SPARK_CONF_DIR" in environment
        or "log4j" in own
        or (program.parents[1] / "conf" / "log4j2.properties").exists()
    ):
        return {}
    levels = f"-Dlog4j2.configurationFile={session.LOG_LEVELS.as_uri()}"
    return {"SPARK_SUBMIT_OPTS": f"{levels} {own}".strip()}


def command_line(program: Path, arguments: Sequence[str], paths: Sequence[Path]) -> list[str]:
    """What is executed. More jars that the caller names are kept."""
    options, job = split(arguments)
    named = [
        options[position + 1] for position, option in enumerate(options[:-1]) if option == "--jars"
    ]
    together = ",".join([*map(str, paths), *named])
    python = workers_python(options, os.environ)
    return [
        str(program),
        *options,
        *python,
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
    check_archives(split(arguments)[0])
    job = split(arguments)[1]
    wanted = [*jars.ALL, *jars.of(places.jars_of(named(job)))]
    found = jars.provide(wanted, lambda said: click.echo(said, err=True))
    line = command_line(program, arguments, found)
    own = {"PYSPARK_DRIVER_PYTHON": sys.executable, "JAVA_HOME": str(java.find().for_spark())}
    if workers_python(split(arguments)[0], os.environ):
        own["PYSPARK_PYTHON"] = (
            # else the session takes this Python's path where the master is on this machine
            "python3"
        )
    os.execve(  # noqa: S606  spark-submit takes this process's place
        program,
        line,
        os.environ
        | drivers_path(os.environ)
        | java_options(program, os.environ)
        | own_standard_error()
        | own,
    )
