"""The broker and the pipeline are two distributions of one version and one license."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import twisted_broker
from twisted_broker.installed import OF_BROKER

ROOT = Path(__file__).parent.parent
VERSION = twisted_broker.__version__


def configuration(place: Path) -> ConfigParser:
    parser = ConfigParser()
    parser.read_string((place / "setup.cfg").read_text())
    return parser


def test_the_pipeline_has_the_brokers_version_and_wants_it() -> None:
    pipeline = configuration(ROOT / "pipeline")
    assert pipeline["metadata"]["version"] == VERSION
    wanted = pipeline["options"]["install_requires"].split("\n")
    assert f"twisted-broker == {VERSION}" in wanted


def test_the_brokers_extras_are_the_pipeline_of_the_same_version() -> None:
    broker = configuration(ROOT)
    extras = dict(broker["options.extras_require"])
    for name in OF_BROKER:
        del extras[name]
    name = "twisted-broker-pipeline"
    assert {extra: wanted.strip() for extra, wanted in extras.items()} == {
        "spark": f"{name} == {VERSION}",
        "java": f"{name}[java] == {VERSION}",
        "s3": f"{name}[s3] == {VERSION}",
        "duckdb": f"{name}[duckdb] == {VERSION}",
        "decode": f"{name}[decode] == {VERSION}",
        "demo": f"{name}[demo] == {VERSION}",
    }
    assert name not in broker["options"]["install_requires"]


def test_only_the_extra_of_jks_needs_a_compiler() -> None:
    """pyjks wants twofish, which has no wheel: `pip install '.[tls]'` failed where there is no
    compiler. `make extras` installs each without one.
    """
    broker = configuration(ROOT)
    wanted = {name: text for name, text in broker["options.extras_require"].items()}
    wanted[""] = broker["options"]["install_requires"]
    assert [name for name, text in wanted.items() if "pyjks" in text] == ["jks"]
    assert "twisted-broker[tls]" in wanted["jks"]
    makefile = (ROOT / "Makefile").read_text()
    (tried,) = re.findall(r"^EXTRAS = (.*)$", makefile, re.MULTILINE)
    assert {*tried.split()} == OF_BROKER - {"jks"}


def test_both_carry_the_license() -> None:
    assert (ROOT / "pipeline" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_every_supported_python_is_a_classifier_and_is_tested() -> None:
    """Both distributions name those that the workflow's matrices run, from the lowest one on."""
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    matrices = re.findall(r"python: \[(.*)\]", workflow)
    assert len(matrices) == 2 and len(set(matrices)) == 1
    tested = re.findall(r"\d+\.\d+", matrices[0])
    for place in (ROOT, ROOT / "pipeline"):
        parts = configuration(place)
        named = re.findall(r"Python :: (\d+\.\d+)", parts["metadata"]["classifiers"])
        assert named == tested
        assert parts["options"]["python_requires"] == f">={tested[0]}"
