"""The same commands on a real cluster: a standalone Spark master and two workers.

No job is told where it runs by more than the environment.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import replog_pipeline
import twisted_broker
from tests.pipeline.kafka_files import expected, unpack
from tests.pipeline.standalone import QUICK, SPARK, Standalone

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
PATIENCE_SECONDS = 300
SMALL = (
    "--conf",
    "spark.executor.memory=512m",
    "--conf",
    f"spark.executor.extraJavaOptions={QUICK}",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    standalone = Standalone(tmp_path_factory.mktemp("standalone"))
    yield standalone
    standalone.end()


def run_replog(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `replog pipeline`."""
    command = [Path(sys.executable).parent / "replog", "pipeline", *arguments]
    more = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": shlex.join([*SMALL, "pyspark-shell"]),
    } | environment
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | more,
        timeout=PATIENCE_SECONDS,
    )


def replog(*arguments: str, status: int = 0, **environment: str) -> dict:
    """Runs it; the JSON that it printed."""
    done = run_replog(*arguments, **environment)
    assert done.returncode == status, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout)


def test_archive_audit_compare_and_sql_run_on_two_workers(cluster, kafka_files, tmp_path):
    source = f"kafka://{kafka_files.broker.bootstrap}/rich"
    archive = ("archive", "--from", source, "--to", str(tmp_path / "table"), "--json")
    records = len(expected(kafka_files.directory, "rich", "read_uncommitted"))
    archived = run_replog("submit", "--master", cluster.url, *SMALL, *archive)
    assert archived.returncode == 0, archived.stderr[-4000:]
    assert json.loads(archived.stdout)["rows"] == records, "standard output is the result alone"
    assert "archive: batch 1" in archived.stderr, "progress goes to standard error"

    audited = replog(
        "audit",
        "--from",
        f"segments:{kafka_files.directory}?topics=rich",
        "--json",
        "--quiet",
        status=1,
        MASTER=cluster.url,
    )
    assert {finding["kind"] for finding in audited["findings"]} == {"hanging transaction"}

    other = unpack(tmp_path / "copy")
    compared = replog(
        "compare", str(kafka_files.directory), str(other), "--json", "--quiet", MASTER=cluster.url
    )
    assert compared["findings"] == [] and compared["batches"] > 0

    query = ("sql", "select count(*) as n from rich", "--from", source, "--format", "csv")
    asked = run_replog(
        "submit", "--master", cluster.url, *SMALL, *query, "--to", str(tmp_path / "csv")
    )
    assert asked.returncode == 0, asked.stderr[-4000:]
    (part,) = (tmp_path / "csv").glob("part-*.csv")
    assert part.read_text() == f"n\n{records}\n"

    workers = cluster.applications()
    assert len(set().union(*workers)) == 4 and all(workers), (
        "an application ran elsewhere, or a worker had nothing to do"
    )


STRANGER = "nobody"
PACKED = (
    "attr",
    "attrs",
    "automat",
    "click",
    "constantly",
    "cramjam",
    "crc32c",
    "dateutil",
    "hyperlink",
    "idna",
    "incremental",
    "lz4",
    "numpy",
    "numpy.libs",
    "pandas",
    "pyarrow",
    "pytz",
    "six.py",
    "twisted",
    "typing_extensions.py",
    "tzdata",
    "zope",
    "zstandard",
)
"""What the packages need on a worker; Spark is there."""


@pytest.fixture
def open_folder():
    """A folder that every user may read; pytest's own are this user's alone."""
    with tempfile.TemporaryDirectory(prefix="replog-") as name:
        os.chmod(name, 0o755)  # noqa: S103  that is meant
        yield Path(name)


def strangers_python() -> str:
    """A Python of this version that the other user may run. Skips where there is none, and where
    no other user can be had.
    """
    if os.geteuid() != 0:
        pytest.skip("only root starts processes of another user")
    names = (sys._base_executable, f"/usr/bin/python3.{sys.version_info.minor}")  # type: ignore[attr-defined]
    found = [name for name in names if runs([name, "-c", ""])]
    if not found or not runs(["ls", str(SPARK)]):
        pytest.skip("another user cannot run this Python and this Spark")
    home = os.environ.get("JAVA_HOME")
    if home and not runs([f"{home}/bin/java", "-version"]):
        pytest.skip("another user cannot run this Java")
    return found[0]


def runs(command: list[str]) -> bool:
    """Whether the other user can."""
    try:
        done = subprocess.run(
            command, user=STRANGER, extra_groups=[], cwd="/", env={}, capture_output=True
        )
    except OSError:
        return False
    return done.returncode == 0


def pack(folder: Path, python: str) -> Path:
    """A virtual environment with both packages and what they need on a worker, packed as the
    documentation says.
    """
    venv = folder / "packed"
    subprocess.run([python, "-m", "venv", "--without-pip", "--copies", venv], check=True)
    site = next(venv.glob("lib/python3*/site-packages"))
    leave = shutil.ignore_patterns("tests", "test", "__pycache__", "include")
    ours = [Path(package.__file__).parent for package in (twisted_broker, replog_pipeline)]
    information = [path for name in PACKED for path in SPARK.parent.glob(f"{name}-*.dist-info")]
    for kept in [*(SPARK.parent / name for name in PACKED), *information, *ours]:
        if kept.is_dir():
            shutil.copytree(kept, site / kept.name, symlinks=True, ignore=leave)
        elif kept.exists():
            shutil.copy(kept, site)
    packed = folder / "packed.tar.gz"
    subprocess.run(["tar", "-I", "gzip -1", "-cf", packed, "-C", venv, "."], check=True)
    return packed


@pytest.mark.long
def test_workers_of_another_user_without_this_package_take_the_packed_environment(open_folder):
    python = strangers_python()
    directory = unpack(open_folder / "kafka")
    lake = open_folder / "lake"
    lake.mkdir()
    lake.chmod(0o777)
    packed = pack(open_folder, python)
    subprocess.run(["chmod", "-R", "a+rX", open_folder], check=True)
    archive = (
        "archive",
        "--from",
        f"segments:{directory}?topics=rich",
        "--to",
        str(lake),
        "--format",
        "parquet",
        "--json",
        "--quiet",
    )
    cluster = Standalone(open_folder / "cluster", 1, STRANGER)
    try:
        to_cluster = ("submit", "--master", cluster.url, *SMALL)
        shipped = ("--archives", f"{packed}#environment")
        # The workers write into folders that the driver makes.
        shared = ("--conf", "spark.hadoop.fs.permissions.umask-mode=000")
        done = run_replog(*to_cluster, *shared, *shipped, *archive)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{cluster.log_tail()}"
        rows = len(expected(directory, "rich", "read_uncommitted"))
        assert json.loads(done.stdout)["rows"] == rows
        assert {path.owner() for path in lake.glob("date=*/*.parquet")} == {STRANGER}
    finally:
        cluster.end()
