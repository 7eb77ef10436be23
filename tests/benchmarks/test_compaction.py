"""What the benchmark of the cleaner counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks import compaction
from benchmarks.servers import Program


def test_processor_time_of_children_counts_living_and_gone() -> None:
    """The cleaner's work is done in a process of its own."""
    before = compaction.tree_seconds(os.getpid())
    work = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        living = compaction.tree_seconds(os.getpid())
        child.communicate(b"\n")
    assert living - before >= 0.15
    assert compaction.tree_seconds(os.getpid()) >= living


def test_only_the_topics_files_count(tmp_path: Path) -> None:
    server = Program("none")
    server.directory = tmp_path
    for name, size in (("t-0/0.log", 1000), ("t-1/0.index", 500), ("tt/0.log", 9000)):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    assert compaction.size_mb(server, "t") == 0.0015
    assert compaction.size_mb(server, "t", "*.log") == 0.001
