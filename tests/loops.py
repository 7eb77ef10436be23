"""Refuses what mypyc compiles wrongly without a word: a loop over `range(n)` that assigns `n`.

Run by `make lint`: `python -m tests.loops FOLDER ..`; prints one line for each, and fails for any.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path


def rebound(source: str) -> Iterator[tuple[int, str]]:
    """(line, name): a name in a loop's `range(..)` that the loop's own body, or its target,
    assigns.
    """
    for loop in ast.walk(ast.parse(source)):
        if not (
            isinstance(loop, ast.For)
            and isinstance(loop.iter, ast.Call)
            and isinstance(loop.iter.func, ast.Name)
            and loop.iter.func.id == "range"
        ):
            continue
        bounds = {each.id for each in loop.iter.args if isinstance(each, ast.Name)}
        for part in [loop.target, *loop.body]:
            for each in ast.walk(part):
                if (
                    isinstance(each, ast.Name)
                    and isinstance(each.ctx, ast.Store | ast.Del)
                    and each.id in bounds
                ):
                    yield each.lineno, each.id


def main(folders: list[str]) -> int:
    found = [
        f"{path}:{line}: `{name}` is the bound of a loop that assigns it"
        for folder in folders
        for path in sorted(Path(folder).rglob("*.py"))
        for line, name in rebound(path.read_text())
    ]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
