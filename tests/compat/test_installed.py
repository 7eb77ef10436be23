"""What a user installs: the sdists are whole, the broker's wheel starts in an empty environment,
and the pipeline's beside it.

REPLOG_TEST_DIST names a directory with both distributions' wheels and sdists that were built
already, as `make dist` does; else they are built here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from kafka import KafkaProducer

import twisted_broker
from tests.compat.broker_process import BrokerProcess
from tests.test_documents import relative_links

ROOT = Path(__file__).parents[2]
# What no checkout has from the start: environments, caches, results.
NOT_OURS = shutil.ignore_patterns(
    ".*_cache",
    ".git",
    ".venv",
    ".hypothesis",
    "__pycache__",
    "build",
    "dist",
    "*.egg-info",
    "dropin.cache",
)
PACKAGE = "pipeline/replog_pipeline"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = os.environ.get("REPLOG_TEST_DIST")
    if built:
        return Path(built).absolute()
    directory = tmp_path_factory.mktemp("dist")
    # Of a copy: a build writes into the directory that it builds.
    shutil.copytree(ROOT, directory / "source", ignore=NOT_OURS)
    for folder in (directory / "source", directory / "source" / "pipeline"):
        build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory))
        run(*build, str(folder), cwd=directory)
    return directory


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    """The broker's."""
    (found,) = dist.glob("twisted_broker-*.whl")
    return found


@pytest.fixture(scope="module")
def pipeline_wheel(dist: Path) -> Path:
    (found,) = dist.glob("twisted_broker_pipeline-*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an empty environment with the broker's wheel."""
    return empty_environment(tmp_path_factory.mktemp("environment"), wheel)


def empty_environment(directory: Path, *wheels: Path) -> Path:
    """Its `bin`. Nothing is fetched: what the wheels depend on is read where these tests have
    it.
    """
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "-q")
    names = map(str, wheels)
    run(*pip, "--no-deps", "--no-index", "--no-compile", *names, cwd=directory)
    here = sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)})
    # Directories in a .pth have their own .pth not read: an editable install here stays out.
    (Path(here) / "dependencies.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("-packages")) + "\n"
    )
    return python.parent


def run(*command: str, cwd: Path) -> str:
    """What it prints; fails with it."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean["REPLOG_COMPILED"] = "0"
    done = subprocess.run(
        command,
        cwd=cwd,
        env=clean,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class InstalledBroker(BrokerProcess):
    """`twisted-broker` of the empty environment."""

    program = ""

    def command(self) -> list[str]:
        return [self.program, *self.options()]


def test_the_wheel_has_all_of_the_packages_and_nothing_else(wheel: Path) -> None:
    """Types, twistd's plugin, the license: files that setup.cfg must name. No pipeline."""
    wanted = [*(ROOT / "twisted_broker").rglob("*"), *(ROOT / "twisted").rglob("*.py")]
    names = content(wheel, wanted, ROOT)
    assert {"twisted_broker/py.typed", "twisted/plugins/replog.py"} <= names


def test_the_pipelines_wheel_has_all_of_its_package_and_nothing_else(pipeline_wheel: Path) -> None:
    folder = ROOT / "pipeline"
    names = content(pipeline_wheel, [*(folder / "replog_pipeline").rglob("*")], folder)
    assert {"replog_pipeline/py.typed", "replog_pipeline/log4j2.properties"} <= names


def content(wheel: Path, wanted: list[Path], root: Path) -> set[str]:
    """The files of a wheel, which are those wanted, below `root`; version and license are ours."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        information = {
            name.partition(".dist-info/")[2]: name
            for name in archive.namelist()
            if ".dist-info/" in name
        }
        metadata = HeaderParser().parsestr(archive.read(information["METADATA"]).decode())
        license_text = archive.read(information["licenses/LICENSE"])
    ours = [
        path.relative_to(root).as_posix()
        for path in wanted
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert sorted(names) == sorted(ours)
    assert metadata["Version"] == twisted_broker.__version__
    assert license_text == (ROOT / "LICENSE").read_bytes()
    return set(names)


def test_the_sdist_has_tests_and_documents(dist: Path, tmp_path: Path) -> None:
    """Whoever unpacks it can run the tests, and its README's links lead somewhere."""
    (found,) = dist.glob("twisted_broker-*.tar.gz")
    with tarfile.open(found) as archive:
        archive.extractall(tmp_path, filter="data")
    (top,) = tmp_path.iterdir()
    for folder in ("tests", "docs", "benchmarks", "twisted", "twisted_broker", PACKAGE):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.name != "dropin.cache":
                assert (top / path.relative_to(ROOT)).read_bytes() == path.read_bytes(), path
    for name in (
        "Makefile",
        "pyproject.toml",
        "pipeline/pyproject.toml",
        "pipeline/setup.cfg",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ):
        assert (top / name).is_file(), name
    assert relative_links(top / "README.md")
    for link in relative_links(top / "README.md"):
        assert (top / link).exists(), link


def test_an_empty_environment_serves_a_record(environment: Path, tmp_path: Path) -> None:
    """Install, start, produce, stop, look into the file: all of it from the wheel."""
    where = run(
        str(environment / "python"),
        "-I",
        "-c",
        "import twisted_broker; print(twisted_broker.__file__)",
        cwd=tmp_path,
    )
    assert Path(where.strip()).is_relative_to(environment.parent)
    version = run(str(environment / "replog"), "--version", cwd=tmp_path)
    assert version.split()[-1] == twisted_broker.__version__
    broker = InstalledBroker(tmp_path / "broker")
    broker.program = str(environment / "twisted-broker")
    try:
        broker.start()
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
        try:
            metadata = producer.send("greetings", b"hello", partition=0).get(timeout=30)
        finally:
            producer.close()
        assert (metadata.topic, metadata.offset) == ("greetings", 0)
        broker.stop()
    finally:
        broker.kill()
    assert "hello" in run(
        str(environment / "replog"),
        "dump-log",
        "--records",
        f"{broker.data}/greetings-0",
        cwd=tmp_path,
    )


def test_the_broker_alone_says_how_to_have_the_pipeline(environment: Path, tmp_path: Path) -> None:
    for arguments in (["--help"], ["pipeline", "doctor"]):
        command = [str(environment / "replog"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        told = " ".join((done.stdout + done.stderr).split())
        assert "pip install --find-links" in told and "[spark]" in told
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr


def test_both_wheels_are_one_command_line(
    wheel: Path, pipeline_wheel: Path, tmp_path: Path
) -> None:
    programs = empty_environment(tmp_path / "environment", wheel, pipeline_wheel)
    told = run(str(programs / "replog"), "pipeline", "report", "--help", cwd=tmp_path)
    assert told.startswith("Usage: replog pipeline report")
    where = "import replog_pipeline; print(replog_pipeline.__file__)"
    found = run(str(programs / "python"), "-I", "-c", where, cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(tmp_path)
