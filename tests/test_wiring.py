"""Constructors take their collaborators; nothing is wired afterwards.

Wiring is an assignment to an attribute of another object when what is assigned is a collaborator:
a function, or what one of our classes declares that attribute as (a callable, a port, a protocol).
State and the fields of answers are none of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "twisted_broker"
Function = ast.FunctionDef | ast.AsyncFunctionDef
EXCEPTIONS = {
    # Twisted's own way: a LoopingCall has no other place for its clock, nor its scheduler for time.
    ("periodic.py", "self._loop.clock"),
    ("tap.py", "clock.seconds"),
    # A request in flight is timed once it was sent.
    ("net/client.py", "waiting.timer"),
    # Fields of records and images that bear the name of a collaborator elsewhere.
    ("cluster/partition_change.py", "record.leader"),
    ("cluster/registration.py", "self._request.listeners"),
    ("coordinator/classic_group.py", "group.leader"),
    ("image/metadata_delta.py", "delta.brokers"),
    ("image/metadata_image.py", "delta.brokers"),
    ("log/producer_state.py", "state.directory"),
}

NOTES = {"what"}  # `interfaces.Marks`: what runs now, for the line of a slow turn


def parsed() -> dict[str, ast.Module]:
    """The package but for its test tools, which put faults into what is there."""
    return {
        name: ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
        if not (name := path.relative_to(PACKAGE).as_posix()).startswith(
            ("simulation/", "testing/")
        )
    }


def parts(target: ast.expr) -> list[ast.expr]:
    """`a, b = ...` assigns to both."""
    if isinstance(target, ast.Tuple | ast.List):
        return [each for element in target.elts for each in parts(element)]
    return [target]


def assignments(tree: ast.AST) -> Iterator[tuple[ast.Attribute, ast.expr | None]]:
    """What is assigned to attributes, and to each its value."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            left = parts(target)
            right: list[ast.expr | None] = [] if node.value is None else [*parts(node.value)]
            if len(left) != len(right):  # nothing, or one value that is taken apart
                right = [node.value] * len(left)
            for each, its in zip(left, right, strict=True):
                if isinstance(each, ast.Attribute):
                    yield each, its


def is_own(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id in ("self", "cls")


def names_in(annotation: ast.AST | None) -> set[str]:
    return (
        set()
        if annotation is None
        else {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    )


def protocols(trees: dict[str, ast.Module]) -> set[str]:
    return {"Callable"} | {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and names_in(ast.Tuple([*node.bases])) & {"Protocol", "Protocol_", "Interface"}
    }


def collaborators(trees: dict[str, ast.Module]) -> set[str]:
    """The attributes that some class declares as a callable, a port or a protocol: in its body, in
    a method, or by taking a parameter of that type.
    """
    kinds, found = protocols(trees), set[str]()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and names_in(node.annotation) & kinds:
                if isinstance(node.target, ast.Attribute):
                    found.add(node.target.attr)
            elif isinstance(node, ast.ClassDef):
                found |= {
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign)
                    and isinstance(each.target, ast.Name)
                    and names_in(each.annotation) & kinds
                }
            elif isinstance(node, Function):
                taken = {
                    each.arg
                    for each in [*node.args.args, *node.args.kwonlyargs]
                    if names_in(each.annotation) & kinds
                }
                found |= {
                    attribute.attr
                    for attribute, value in assignments(node)
                    if is_own(attribute) and isinstance(value, ast.Name) and value.id in taken
                }
    return found


def wired(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """(module, what is assigned to) of all wiring after construction."""
    known = collaborators(trees)
    methods = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, Function) and not node.decorator_list  # a property is a value
    }
    return {
        (name, ast.unparse(attribute))
        for name, tree in trees.items()
        for attribute, value in assignments(tree)
        if not is_own(attribute)
        and attribute.attr not in NOTES
        and (
            attribute.attr in known
            or isinstance(value, ast.Lambda)
            or (isinstance(value, ast.Name) and value.id == "self")
            or (isinstance(value, ast.Attribute) and is_own(value) and value.attr in methods)
        )
    }


def test_nothing_is_wired_after_construction() -> None:
    assert sorted(wired(parsed()) - EXCEPTIONS) == []


def test_what_was_wired_so_before_is_found() -> None:
    """Callbacks, a worker and an owner, put into what others made."""
    planted = """
class Owner:
    def take(self, log, part):
        log.durability.disk = self.worker
        log.on_synced = self.was_synced
        part.listener = lambda: None
        part.before, part.owner = None, self
        part.size = 3

    def was_synced(self, log): ...

class Durability:
    def __init__(self, disk: IDiskWorker | None) -> None:
        self.disk = disk

class IDiskWorker(Interface): ...
"""
    found = {text for _, text in wired({"planted.py": ast.parse(planted)})}
    assert found == {"log.durability.disk", "log.on_synced", "part.listener", "part.owner"}
