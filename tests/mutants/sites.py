"""Where ring 0 can be mutated, and how: cosmic-ray's operators, a sample drawn under a seed.

Owns `Mutant`, `sample` and `mutated`.

1. The same modules, seed and number give the same mutants; a larger number adds to them, and a
   change of the code redraws what it changed.
2. A place in the code is drawn first, and then one of its mutations: an operator with eleven
   replacements is not drawn eleven times as often.
3. What cannot be noticed is not drawn: annotations, which nothing evaluates, what compiles to the
   same code, identity for equality. Neither is what does not compile.
4. A mutant's key has no line number: it outlives changes of the code around it.

Not here: which modules (`tests/mutants/ring_0.py`), what notices a mutant
(`tests/mutants/trial.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from cosmic_ray.ast import Visitor, get_ast
from cosmic_ray.operators.binary_operator_replacement import BinaryOperators
from cosmic_ray.operators.provider import OperatorProvider

_PROVIDER = OperatorProvider()
_OPERATORS = {
    name: _PROVIDER[name]()
    for name in sorted(_PROVIDER)
    # Those with arguments need the names of variables, and draw numbers of their own.
    if not _PROVIDER[name].arguments()
}
_NOT_DRAWN = ("_Eq_Is", "_NotEq_IsNot")
"""Identity for equality: whether that differs is a matter of which objects CPython shares"""
_UNCHANGED = frozenset(("name", "string", "newline", "endmarker", "fstring_string"))
"""Leaves that no operator changes: most of the tree."""
_SIGNS = frozenset((*(each.value for each in BinaryOperators), "~", "not"))


_COMPOUND = frozenset(
    (
        *("file_input", "suite", "simple_stmt", "if_stmt", "while_stmt", "for_stmt", "try_stmt"),
        *("with_stmt", "funcdef", "classdef", "decorated", "match_stmt", "case_block"),
    )
)


class Place(NamedTuple):
    """`module`: its path; `start`, `end`: line from 1, column from 0; `first`, `last`: lines of the
    statement, or of the part of it that is run at once; `scope`: the name of the function or class;
    `function`: of the outermost function whose body it is in, "" for none.
    """

    module: str
    start: tuple[int, int]
    end: tuple[int, int]
    first: int
    last: int
    scope: str
    function: str


class Mutant(NamedTuple):
    """`occurrence`: the how manieth of the operator's mutations in this module, from 0."""

    place: Place
    operator: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.place.module}:{self.place.start[0]} {self.operator} {self.occurrence}"


class Key(NamedTuple):
    """What a mutant is, whatever its line; `code` and `mutant` are the changed lines."""

    module: str
    scope: str
    operator: str
    code: str
    mutant: str


class _Mutating(Visitor):
    """Mutates one occurrence."""

    def __init__(self, mutant: Mutant) -> None:
        self._operator, self._left = _OPERATORS[mutant.operator], mutant.occurrence

    def visit(self, node: Any) -> Any:
        if _can_change(node):
            for index, _ in enumerate(self._operator.mutation_positions(node)):
                if self._left == 0:
                    node = self._operator.mutate(node, index)
                self._left -= 1
        return node


def mutated(source: str, mutant: Mutant) -> str:
    """The module's source with the mutation in it."""
    return str(_Mutating(mutant).walk(get_ast(source)).get_code())


def key_of(source: str, mutant: Mutant) -> Key:
    """Its key."""
    changed = list(unified_diff(source.splitlines(), mutated(source, mutant).splitlines(), n=0))
    before, after = (
        "\n".join(line[1:].strip() for line in changed[2:] if line.startswith(sign)).strip()
        for sign in "-+"
    )
    return Key(mutant.place.module, mutant.place.scope, mutant.operator, before, after)


def mutants_of(module: str, source: str) -> dict[Place, list[Mutant]]:
    """All mutants of a module, by place."""
    found: dict[Place, list[Mutant]] = {}
    counts = dict.fromkeys(_OPERATORS, 0)
    for node in _nodes(get_ast(source)):
        for name, operator in _OPERATORS.items():
            for start, end in operator.mutation_positions(node):
                occurrence = counts[name]
                counts[name] += 1
                if _evaluated(node):
                    place = Place(module, start, end, *_statement(node), *_scope(node))
                    found.setdefault(place, []).append(Mutant(place, name, occurrence))
    return found


def sample(root: Path, modules: Collection[str], number: int, seed: int) -> list[Mutant]:
    """So many mutants of these modules, in the order in which they were drawn."""
    sources = {module: (root / module).read_text() for module in modules}
    found: dict[Place, list[Mutant]] = {}
    for module, source in sorted(sources.items()):
        found.update(mutants_of(module, source))
    chosen: list[Mutant] = []
    for place in _shuffled(found, sources, seed):
        if len(chosen) == number:
            break
        source = sources[place.module]
        mutants = sorted(found[place], key=lambda each: _drawn(seed, each.operator, place.start[1]))
        mutant = next((each for each in mutants if _can_be_noticed(source, each)), None)
        if mutant is not None:
            chosen.append(mutant)
    return chosen


def _shuffled(places: Collection[Place], sources: Mapping[str, str], seed: int) -> list[Place]:
    """By what is there, not by how many there are: a change of the code leaves the others in their
    order.
    """
    lines = {module: source.splitlines() for module, source in sources.items()}

    def drawn(place: Place) -> tuple[bytes, Place]:
        line, column = place.start
        text = lines[place.module][line - 1]
        return _drawn(seed, place.module, place.scope, text, column), place

    return sorted(places, key=drawn)


def _drawn(*what: object) -> bytes:
    return sha256(repr(what).encode()).digest()


def _can_be_noticed(source: str, mutant: Mutant) -> bool:
    return not mutant.operator.endswith(_NOT_DRAWN) and is_other_code(
        source, mutated(source, mutant)
    )


def is_other_code(source: str, other: str) -> bool:
    """Whether it compiles, to something else."""
    try:
        return _shape(compile(source, "", "exec")) != _shape(compile(other, "", "exec"))
    except SyntaxError:
        return False


def _shape(code: CodeType) -> Any:
    """What a code object does, without its lines."""
    constants = [
        _shape(each) if isinstance(each, CodeType) else (type(each), repr(each))
        for each in code.co_consts
    ]
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_exceptiontable


def _can_change(node: Any) -> bool:
    if node.type == "operator":
        return node.value in _SIGNS
    return node.type not in _UNCHANGED


def _nodes(node: Any) -> Iterator[Any]:
    """In the order of a `Visitor`."""
    if _can_change(node):
        yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


def _evaluated(node: Any) -> bool:
    """Neither an annotation nor for type checkers only."""
    child = node
    while node is not None:
        if node.type == "annassign" and child is node.children[1]:
            return False
        if node.type == "tfpdef" and child is node.children[-1]:
            return False
        if node.type == "funcdef" and child is node.annotation:
            return False
        if node.type == "parameters" and child.type == "operator":
            return False  # the star before parameters that are keywords
        if node.type == "if_stmt" and node.children[1].get_code().strip() == "TYPE_CHECKING":
            return False
        child, node = node, node.parent
    return True


def _statement(node: Any) -> tuple[int, int]:
    """The lines that are run together with a node."""
    while node.parent is not None and node.parent.type not in _COMPOUND:
        node = node.parent
    if node.type in _COMPOUND:  # an operator for the whole statement: what is before its body
        node = node.children[1]
    return node.start_pos[0], node.end_pos[0]


def _scope(node: Any) -> tuple[str, str]:
    """The names of the innermost scope, and of the outermost function whose body it is in."""
    names: list[str] = []
    function = 0
    while node.parent is not None:
        child, node = node, node.parent
        if node.type in ("funcdef", "classdef"):
            names.append(node.name.value)
            if node.type == "funcdef" and child is node.children[-1]:
                function = len(names)
        elif node.type == "decorated" and child is not node.children[-1]:
            names.append(node.children[-1].name.value)
    scope = ".".join(reversed(names))
    outermost = ".".join(reversed(names[function - 1 :])) if function else ""
    return scope, outermost
