"""Time has two names: `now_ms` is monotonic, `wall_ms` the calendar (docs/ARCHITECTURE.md 11)."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "twisted_broker"
READINGS = {"now_ms", "wall_ms"}
Found = tuple[str, int, str]


def parsed() -> dict[str, ast.Module]:
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def reading(name: str | None) -> str | None:
    """Which of the two a name is, with or without the underscore of a private one."""
    plain = "" if name is None else name.lstrip("_").lower()
    return plain if plain in READINGS else None


def name_of(value: ast.expr | None) -> str | None:
    """The last name of `a`, `a.b` or `a.b()`."""
    if isinstance(value, ast.Call):
        return name_of(value.func)
    if isinstance(value, ast.Attribute):
        return value.attr
    return value.id if isinstance(value, ast.Name) else None


def parameters(trees: dict[str, ast.Module]) -> dict[str, list[list[str]]]:
    """Of each function, and of each class that is called: the names, once for each that is named
    so.
    """
    found: dict[str, list[list[str]]] = defaultdict(list)
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [each.arg for each in [*node.args.posonlyargs, *node.args.args]]
                found[node.name].append(names[1:] if names[:1] in (["self"], ["cls"]) else names)
            elif isinstance(node, ast.ClassDef):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                        found[node.name].append([its.arg for its in each.args.args[1:]])
                fields = [
                    name
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and (name := name_of(each.target))
                ]
                if fields:
                    found[node.name].append(fields)
    return found


def differ(target: str | None, value: ast.expr | None) -> bool:
    one, other = reading(target), reading(name_of(value))
    return one is not None and other is not None and one != other


def assignments(node: ast.Assign | ast.AnnAssign) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        value = node.value
        if (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
        ):
            yield from zip(target.elts, value.elts, strict=True)
        else:
            yield target, value


def mixed_up(trees: dict[str, ast.Module]) -> list[Found]:
    """(module, line, what) where one reading goes under the name of the other."""
    known, found = parameters(trees), list[Found]()
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                wrong = any(differ(name_of(to), value) for to, value in assignments(node))
            elif isinstance(node, ast.Call):
                namesakes = known.get(name_of(node.func) or "", [])
                wrong = any(differ(each.arg, each.value) for each in node.keywords) or any(
                    # Of namesakes any may be meant: all must say the other thing.
                    bool(namesakes)
                    and all(row < len(names) and differ(names[row], value) for names in namesakes)
                    for row, value in enumerate(node.args)
                )
            else:
                continue
            if wrong:
                found.append((module, node.lineno, ast.unparse(node)))
    return found


def test_monotonic_time_and_the_calendar_are_not_mixed_up() -> None:
    assert mixed_up(parsed()) == []


def test_what_mixes_them_up_is_found() -> None:
    planted = """
def take(name, wall_ms): ...
class Part:
    def __init__(self, now_ms): ...
now_ms = runtime.wall_ms()
first, self._wall_ms = 1, self.now_ms
take("a", runtime.now_ms())
Part(wall_ms)
other(now_ms=wall_ms)
take("b", wall_ms)
Part(runtime.now_ms())
"""
    assert [line for _, line, _ in mixed_up({"planted.py": ast.parse(planted)})] == [5, 6, 7, 8, 9]
