"""Limits that a simulated run makes small: a seed is the same run in every process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import twisted_broker
from twisted_broker.simulation.knobs import KNOBS, STEPS, Knob, turned

PACKAGE = Path(twisted_broker.__file__).parent
ALL = KNOBS | STEPS


def imports() -> Iterator[tuple[str, str, str]]:
    """(module, the one it takes a name from, the name)."""
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                yield from ((module, node.module, each.name) for each in node.names)


def test_a_limit_is_turned_wherever_it_was_imported() -> None:
    """A module that is not named keeps the value of production; one that is loaded while the limit
    is turned, as handlers of requests are, would keep that: seed 952451 was two runs.
    """
    places: dict[tuple[str, str], set[str]] = {}
    for knob in ALL.values():
        modules = {module.__name__ for module in knob.modules}
        places |= {(module, knob.name): modules for module in modules}
    found = list(imports())
    assert any((source, name) in places for _, source, name in found)
    assert [
        (module, source, name)
        for module, source, name in found
        if module not in places.get((source, name), {module})
    ] == []


@pytest.mark.parametrize("knob", ALL.values(), ids=ALL)
def test_all_places_of_a_limit_have_one_value(knob: Knob) -> None:
    assert len({getattr(module, knob.name) for module in knob.modules}) == 1


def test_what_is_turned_is_turned_back() -> None:
    name = "producer_snapshot_writer.SLICE_PRODUCERS"

    def values() -> set[int]:
        return {vars(module)["SLICE_PRODUCERS"] for module in ALL[name].modules}

    before = values()
    with pytest.raises(ZeroDivisionError), turned({name: 3}):
        assert values() == {3} != before
        raise ZeroDivisionError
    assert values() == before
