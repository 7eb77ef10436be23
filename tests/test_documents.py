"""What documents point to is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from twisted_broker.known_settings import broker_settings

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks" / "README.md"]
)


def relative_links(document: Path) -> list[str]:
    """The links of a page of Markdown to other files, without what follows a #."""
    found = re.findall(r"\]\(([^)\s]+)\)", document.read_text())
    return [link.partition("#")[0] for link in found if not re.match(r"[a-z]+:|#", link)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files(document: Path) -> None:
    for link in relative_links(document):
        assert (document.parent / link).exists(), link


def test_the_readme_has_links() -> None:
    """The test above is not empty, and a user finds the license, changes and how to take part."""
    assert {"LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} <= set(
        relative_links(ROOT / "README.md")
    )


def test_each_page_is_found_from_the_first_one_of_the_site() -> None:
    index = ROOT / "docs" / "index.md"
    found = {(index.parent / link).resolve() for link in relative_links(index)}
    assert {path for path in DOCUMENTS if path != index} <= found


# What cards and documents name in backticks

PACKAGE = ROOT / "twisted_broker"
SOURCES = sorted(
    path
    for folder in ("twisted_broker", "pipeline", "tests", "benchmarks", "twisted", "examples")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and not {"__pycache__", "build"} & set(path.parts)
)
MODULES = {path.stem for path in SOURCES if path.suffix == ".py"} | {
    path.parent.name for path in SOURCES if path.name == "__init__.py"
}
ROOMS = {path.stem for path in PACKAGE.rglob("*.py")} | {
    path.name for path in PACKAGE.rglob("*") if path.is_dir()
}
PATHS = {f"/{path.relative_to(ROOT).as_posix()}" for path in SOURCES} | {
    f"/{path.relative_to(ROOT).as_posix()}" for path in [*ROOT.glob("*"), *ROOT.glob("docs/*")]
}
TEXT_OF_PACKAGE = "\n".join(
    path.read_text() for path in sorted(PACKAGE.rglob("*.py")) if path.is_file()
)
A_FILE = re.compile(r"(?:[\w.{},*-]+/)*[\w{},*-]+\.(?:py|md|toml)|(?:[a-z_]+/)+[a-z_*]*")
A_MODULE = re.compile(r"[a-z_]+(?:\.[a-z_]+)+(?:\.\w+)?|[a-z_]+\.[A-Z]\w+")
ELSEWHERE = (
    *("core/", "clients/", "server/src", "storage/", "raft/", "metadata/", "group-coordinator/"),
    *("build/", "dist/", "bin/", "_replog/"),
)
"""Folders of Apache Kafka's sources, which documents cite, and folders that programs make."""
A_SETTING = re.compile(r".*\.(?:ms|bytes|size|rack|controllers|properties)")


def is_a_file(name: str) -> bool:
    """Whether a path of the repository ends so; `api/fetch` is `api/fetch.py`."""
    name = name.rstrip("/")
    ends = [f"/{name}", f"/{name}.py"]
    return any(path.endswith(tuple(ends)) or f"/{name}/" in path for path in PATHS)


def is_a_module(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module's text has.

    What does not begin with a module's name is none of ours (a setting, a module of Twisted).
    """
    parts = name.removeprefix("twisted_broker.").split(".")
    if parts[0] not in ROOMS or f'"{name}"' in TEXT_OF_PACKAGE or A_SETTING.fullmatch(name):
        return True
    if name in broker_settings():
        return True
    if is_a_file("/".join(parts)):
        return True
    *module, last = parts
    return any(
        re.search(rf"\b{last}\b", path.read_text())
        for path in SOURCES
        if path.suffix == ".py"
        and path.with_suffix("")
        .as_posix()
        .removesuffix("/__init__")
        .endswith("/" + "/".join(module))
    )


def not_found(text: str) -> list[str]:
    """Names of files and modules in backticks that lead nowhere."""
    missing = []
    for name in re.findall(r"`([^`\n]+)`", text):
        if name.startswith(ELSEWHERE) or "*" in name or "{" in name:
            continue
        if A_FILE.fullmatch(name):
            is_there = is_a_file(name)
        else:
            is_there = not A_MODULE.fullmatch(name) or is_a_module(name)
        if not is_there:
            missing.append(name)
    # `Not here: the rules (`fetch_session`)`: what stands alone in parentheses is a module.
    _, *rest = re.split(r"Not here:|L(?:eaves|eft)\s+out:?", text, maxsplit=1)
    for each in re.findall(r"\(((?:`[^`]+`(?:,\s)?)+)\)", "".join(rest)):
        missing += [name for name in re.findall(r"`([a-z_]+)`", each) if name not in MODULES]
    return missing


CARDS = sorted(path for path in SOURCES if path.suffix == ".py")


@pytest.mark.parametrize(
    "folder",
    sorted({path.parent for path in CARDS}),
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_cards_name_what_is_there(folder: Path) -> None:
    """A module that is moved or renamed takes the references to it along."""
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in CARDS
        if path.parent == folder
        for name in not_found(ast.get_docstring(ast.parse(path.read_text())) or "")
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_name_what_is_there(document: Path) -> None:
    assert not_found(document.read_text()) == []


def test_a_name_that_is_not_there_is_found() -> None:
    """The tests above can fail: each form of a reference, and one that is not there."""
    assert (
        not_found("`api/fetch.py`, `log.segment`, `net/client`. Not here: x (`fetch_session`)")
        == []
    )
    assert not_found(
        "`api/fetchy.py`, `log.segmented`, `net/clients`. Not here: x (`sessions_of`)"
    ) == [
        "api/fetchy.py",
        "log.segmented",
        "net/clients",
        "sessions_of",
    ]
