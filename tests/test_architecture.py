"""What docs/ARCHITECTURE.md claims of the code is so: each test reads the claim from its text.

The walks of records have a file of their own (test_walks.py), as have ring 0 (test_rings.py), the
wiring (test_wiring.py) and the names of time (test_time_names.py).
"""

from __future__ import annotations

import re
from pathlib import Path

import grimp
import pytest

from tests.memory_broker import MemoryBroker
from tests.simulation.mutations import MUTATIONS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
PACKAGE = "twisted_broker"
REAL_WORLD = {"os", "select", "signal", "socket", "subprocess", "threading", "time", "kazoo"}
OF_ADDRESSES = {"api.envelope", "cluster.forwarding_manager", "net.listeners"}
"""They take text forms of addresses, or this machine's name, from `socket`: no connection."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """All imports of the package, those for types included."""
    return grimp.build_graph(
        PACKAGE,
        include_external_packages=True,
        exclude_type_checking_imports=False,
        cache_dir=None,
    )


def rows(title: str) -> list[list[str]]:
    """The rows of the first table behind a title or a sentence, cell by cell."""
    _, found, rest = TEXT.partition(title)
    assert found, title
    table = rest[rest.index("|---") :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[1:]]


def paths(text: str) -> set[str]:
    """The modules that a text names by file, as dotted names below the package."""
    return {name.replace("/", ".") for name in re.findall(r"`([\w/]+)\.py`", text)}


def test_who_names_the_real_world(graph: grimp.ImportGraph) -> None:
    """Section 3: ring 2 is the table's row, and no other module of a running broker imports what
    reaches the world.
    """
    (ring_2,) = [cells for cells in rows("## 3. Three rings") if cells[0].startswith("2 ")]
    known = paths(ring_2[2])
    found = {
        module.removeprefix(f"{PACKAGE}.")
        for name in (REAL_WORLD | {"random", "fcntl"}) & graph.modules
        for module in graph.find_modules_that_directly_import(name)
    }
    folder = ROOT / PACKAGE
    found |= {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if re.search(r"^\s*from twisted\.internet import reactor\b", path.read_text(), re.M)
    }
    found = {each for each in found if not each.startswith(("simulation.", "testing.", "cli."))}
    assert found - OF_ADDRESSES <= known
    # The broker names all that is handed in, by the ports alone; keys are fetched by urllib, whose
    # other half only parses.
    assert known - found <= {"net.jwks"}


def test_the_table_of_events() -> None:
    """Section 4: every event is there, with the purgatories that it checks, and no other event."""
    broker = MemoryBroker().start()
    manager = broker.broker.parts.replica_manager
    effects = manager.effects
    checks = {
        effects._complete_delayed_produces: {"produce"},
        effects._complete_delayed_fetches: {"fetch"},
        effects._complete_delayed_delete_records: {"delete-records"},
        effects._complete_delayed_requests: {"produce", "fetch", "delete-records"},
    }
    table = {
        event.__name__: {name for effect in row for name in checks.get(effect, ())}
        for event, row in effects.event_table().items()
    }
    claimed = {
        name: {
            purgatory
            for part in re.findall(r"check (?:the )?([^;:]*?) purgator(?:y|ies)", effects)
            for purgatory in re.findall(r"produce|fetch|delete-records", part)
        }
        for events, effects in rows("## 4. Events and their effects")
        for name in events.split(", ")
    }
    assert claimed == table
    broker.stop()


def test_who_knows_of_idle_partitions(graph: grimp.ImportGraph) -> None:
    """Section 4: the session, and the modules that the text names; the purgatory only by what a
    session gives it.
    """
    known = {
        name
        for name in graph.find_modules_that_directly_import(
            f"{PACKAGE}.replication.idle_partitions"
        )
        if ".testing." not in name and ".simulation." not in name
    }
    _, _, rest = TEXT.partition("**A partition**")
    paragraph = TEXT[TEXT.index("The listeners are fetch sessions") : TEXT.index(rest)]
    assert "No other module knows of idle partitions." in paragraph
    named = paths(paragraph) | {"replication.replica_manager"}
    assert "The replica manager gives each session" in paragraph
    assert {name.removeprefix(f"{PACKAGE}.") for name in known} <= {
        name if "." in name else f"replication.{name}" for name in named
    }


def test_imports_between_the_packages_of_replication(graph: grimp.ImportGraph) -> None:
    """Section 4: they go one way."""
    room = f"{PACKAGE}.replication"
    packages = ("explain", "fetcher", "purgatory", "partition")
    imported = {
        package: {
            each.removeprefix(f"{room}.").split(".")[0]
            for module in graph.find_descendants(f"{room}.{package}")
            for each in graph.find_modules_directly_imported_by(module)
            if each.startswith(f"{room}.") and not each.startswith(f"{room}.{package}")
        }
        for package in packages
    }
    assert imported == {
        "explain": {"fetcher", "purgatory", "partition"},
        "purgatory": {"partition", "fetch_session"},
        "fetcher": {
            "partition",
            "fetch_session",
            "collaborators",
            "long_appends",
            "live_brokers",
            "replication_quota",
        },
        "partition": set(),
    }


def test_who_tolerates_that_this_process_was_stopped(graph: grimp.ImportGraph) -> None:
    """Section 5: the modules that take their tolerance from `stall_tolerance.py`."""
    _, _, rest = TEXT.partition("Time in which this process was stopped counts against no peer.")
    named = paths(rest.partition("see to it")[0])
    module = f"{PACKAGE}.stall_tolerance"
    assert {f"{PACKAGE}.{name}" for name in named} == graph.find_modules_that_directly_import(
        module
    )


def test_the_planted_mistakes_are_counted() -> None:
    assert f"{len(MUTATIONS)} planted mistakes are" in (ROOT / "CONTRIBUTING.md").read_text()
