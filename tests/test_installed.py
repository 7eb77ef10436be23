"""The command that adds an extra, for each way in which pip may have installed the package."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from twisted_broker import installed
from twisted_broker.installed import command, install, noted


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With a name that a shell would take apart."""
    place = tmp_path / "my brokers"
    place.mkdir()
    (place / "pyproject.toml").write_text("")
    return place


@pytest.fixture
def site(tmp_path: Path) -> Path:
    place = tmp_path / "site-packages"
    place.mkdir()
    return place


def words(extra: str, origin: dict[str, Any], beside: Path) -> list[str]:
    """As the shell takes it."""
    return shlex.split(command(extra, origin, beside))


@pytest.mark.parametrize(("editable", "options"), [(True, ["-e"]), (False, [])])
def test_from_a_checkout(checkout: Path, site: Path, editable: bool, options: list[str]) -> None:
    origin = {"url": checkout.as_uri(), "dir_info": {"editable": True} if editable else {}}
    assert "%20" in origin["url"]
    both = [*options, f"{checkout}[spark]", *options, f"{checkout}/pipeline"]
    assert words("spark", origin, site) == ["pip", "install", *both]


@pytest.mark.parametrize("extra", sorted(installed.OF_BROKER))
def test_an_extra_of_the_broker_brings_no_pipeline(checkout: Path, site: Path, extra: str) -> None:
    origin = {"url": checkout.as_uri(), "dir_info": {}}
    assert words(extra, origin, site) == ["pip", "install", f"{checkout}[{extra}]"]
    url = {"url": "https://host/x.git", "vcs_info": {"vcs": "git"}}
    assert not [word for word in words(extra, url, site) if installed.PIPELINE in word]


def test_from_a_wheel(tmp_path: Path, site: Path) -> None:
    wheel = tmp_path / "twisted_broker-1.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    assert words("java", {"url": wheel.as_uri(), "archive_info": {}}, site) == [
        "pip",
        "install",
        "--find-links",
        str(tmp_path),
        f"{wheel}[java]",
    ]


def test_from_a_source_archive(tmp_path: Path, site: Path) -> None:
    source = tmp_path / "twisted_broker-1.0.tar.gz"
    source.write_bytes(b"")
    assert words("java", {"url": source.as_uri(), "archive_info": {}}, site) == [
        "pip",
        "install",
        f"twisted-broker[java] @ {source.as_uri()}",
        f"twisted-broker-pipeline @ {source.as_uri()}#subdirectory=pipeline",
    ]


@pytest.mark.parametrize(
    ("origin", "requirements"),
    [
        (
            {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            [
                "twisted-broker[demo] @ git+https://host/x.git@abc",
                "twisted-broker-pipeline @ git+https://host/x.git@abc#subdirectory=pipeline",
            ],
        ),
        (
            {"url": "https://host/x.tar.gz", "archive_info": {}},
            [
                "twisted-broker[demo] @ https://host/x.tar.gz",
                "twisted-broker-pipeline @ https://host/x.tar.gz#subdirectory=pipeline",
            ],
        ),
        (
            {"url": "https://host/x-1.0-py3-none-any.whl", "archive_info": {}},
            ["twisted-broker[demo] @ https://host/x-1.0-py3-none-any.whl"],
        ),
        ({}, ["twisted-broker[demo]"]),
        ({"url": "file:///gone/meanwhile", "dir_info": {}}, ["twisted-broker[demo]"]),
    ],
)
def test_from_elsewhere(site: Path, origin: dict[str, Any], requirements: list[str]) -> None:
    assert words("demo", origin, site) == ["pip", "install", *requirements]


def test_a_checkout_that_pip_knows_nothing_of(checkout: Path) -> None:
    assert words("spark", {}, checkout) == [
        "pip",
        "install",
        "-e",
        f"{checkout}[spark]",
        "-e",
        f"{checkout}/pipeline",
    ]


@pytest.mark.parametrize("text", [None, "", "no json", "[1]"])
def test_what_pip_did_not_note(text: str | None) -> None:
    assert noted(text) == {}


def test_pips_note_of_this_package_is_what_counts(
    monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    class Installed:
        def read_text(self, name: str) -> str:
            assert name == "direct_url.json"
            return json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}})

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    assert shlex.split(install("spark"))[-3] == f"{checkout}[spark]"


def test_a_package_that_was_never_installed(monkeypatch: pytest.MonkeyPatch, site: Path) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    monkeypatch.setattr(installed, "beside_package", lambda: site)
    assert install("spark") == "pip install 'twisted-broker[spark]'"
