"""The same commands on a real cluster: a standalone Spark master and two workers.

No job is told where it runs by more than the environment.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.kafka_files import expected, unpack
from tests.pipeline.standalone import QUICK, Standalone

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


def replog(*arguments: str, status: int = 0, **environment: str) -> dict:
    """Runs `replog pipeline`; the JSON that it printed."""
    command = [Path(sys.executable).parent / "replog", "pipeline", *arguments]
    more = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": shlex.join([*SMALL, "pyspark-shell"]),
    } | environment
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | more, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == status, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return json.loads(done.stdout)


def test_archive_audit_and_compare_run_on_two_workers(cluster, kafka_files, tmp_path):
    source = f"kafka://{kafka_files.broker.bootstrap}/rich"
    archive = ("archive", "--from", source, "--to", str(tmp_path / "table"), "--json", "--quiet")
    records = len(expected(kafka_files.directory, "rich", "read_uncommitted"))
    assert replog("submit", "--master", cluster.url, *SMALL, *archive)["rows"] == records

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

    workers = cluster.applications()
    assert len(set().union(*workers)) == 3 and all(workers), (
        "an application ran elsewhere, or a worker had nothing to do"
    )
