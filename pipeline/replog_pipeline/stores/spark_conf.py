"""`--spark-conf NAME=VALUE`, and Spark's settings as far as they are known before a JVM runs.

1. As Spark's own programs take them: the option wins over PYSPARK_SUBMIT_ARGS, that over
   spark-defaults.conf in SPARK_CONF_DIR (else in SPARK_HOME); Hadoop's settings begin with
   `spark.hadoop.`.
2. A setting whose name says that it is a secret goes to no command line of ours.
3. No value is repeated in an error.

Source: Spark's "Loading Default Configurations", `spark.redaction.regex`. Not here: core-site.xml,
which Hadoop reads.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import click

from replog_pipeline.errors import PipelineError

F = TypeVar("F", bound=Callable[..., Any])

HADOOP = "spark.hadoop."
SECRET = re.compile(
    r"secret|password|token|credential|(access|account|encryption|private)[.]?key", re.IGNORECASE
)
LINE = re.compile(r"\s*([^\s=:#!][^\s=:]*)(?:\s*[=:]\s*|\s+)(.*?)\s*")
FROM_ENVIRONMENT = {
    "AWS_ENDPOINT_URL": "fs.s3a.endpoint",
    "AWS_ACCESS_KEY_ID": "fs.s3a.access.key",
    "AWS_SECRET_ACCESS_KEY": "fs.s3a.secret.key",
    "AWS_SESSION_TOKEN": "fs.s3a.session.token",
}
"""What Spark takes from the environment, unless a setting says otherwise."""
OPTIONS = {"--master": "spark.master", "--driver-memory": "spark.driver.memory"}
"""Of spark-submit."""
MEMORY = "spark.driver.memory"
SIZE = re.compile(r"(\d+)([kmgt]?)")
"""As Java takes it."""
LEAST_MEMORY = 450 << 20
"""One and a half of what Spark reserves for itself."""


def spark_options(command: F) -> F:
    """The option; the command gets `conf`, name -> value."""
    return click.option(
        "--spark-conf",
        "conf",
        multiple=True,
        metavar="NAME=VALUE",
        callback=given,
        help="A setting of Spark, or of Hadoop as spark.hadoop.NAME; it wins over "
        "spark-defaults.conf, where secrets belong.",
    )(command)


def given(context: click.Context, option: click.Parameter, lines: tuple[str, ...]) -> Any:
    """Raises PipelineError that does not repeat the text: it may be a secret."""
    found = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator or not name.startswith("spark."):
            raise PipelineError(
                "--spark-conf: write NAME=VALUE, as spark.hadoop.fs.s3a.path.style.access=true"
            )
        found[name.strip()] = value.strip()
    check_memory(found)
    return found


def check_memory(conf: Mapping[str, str]) -> None:
    """PipelineError for a heap with which no driver starts: without a unit it is bytes."""
    value = conf.get(MEMORY)
    if value is None:
        return
    size = SIZE.fullmatch(value.lower())
    if size is None or int(size[1]) << 10 * " kmgt".index(size[2] or " ") < LEAST_MEMORY:
        raise PipelineError(
            f"{MEMORY}={value}: Spark's driver needs 450m or more: write a number and its unit, "
            "as 2g"
        )


def is_secret(name: str) -> bool:
    return bool(SECRET.search(name))


def known(conf: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Spark's settings, those of `conf` first."""
    return defaults(environment) | submitted(environment) | dict(conf)


def defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of spark-defaults.conf."""
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    try:
        text = (Path(folder) / "spark-defaults.conf").read_text() if folder else ""
    except (OSError, UnicodeDecodeError):
        return {}  # Spark will say so
    found = (LINE.fullmatch(line) for line in text.splitlines())
    return {match[1]: match[2] for match in found if match}


def submitted(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of PYSPARK_SUBMIT_ARGS."""
    try:
        words = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError:
        return {}  # Spark will say so
    pairs = [value for word, value in pairwise(words) if word in ("--conf", "-c")]
    found = dict(pair.partition("=")[::2] for pair in pairs)
    for word, value in pairwise(words):
        if word in OPTIONS:
            found[OPTIONS[word]] = value
    return found


def hadoop(spark: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Hadoop's settings among them, and those that Spark takes from the environment."""
    outside = {
        name: environment[variable]
        for variable, name in FROM_ENVIRONMENT.items()
        if environment.get(variable)
    }
    own = {
        name.removeprefix(HADOOP): value for name, value in spark.items() if name.startswith(HADOOP)
    }
    return outside | own
