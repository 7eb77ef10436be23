"""What is compiled (`compiled/modules.txt`) can be: the names are there, nothing stands among them
that mypyc gets wrong, and who extends a compiled class may.

Not here: loops that mypyc gets wrong (`tests/loops.py`), that a compiled broker does what a plain
one does (`make traces`).
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MODULES = (ROOT / "compiled" / "modules.txt").read_text().split()
FAMILIES = (ROOT / "compiled" / "families.txt").read_text().split()
FILES = {ROOT / "twisted_broker" / f"{name.replace('.', '/')}.py" for name in MODULES}
WRONG = {
    "api.each",  # an asynchronous generator
    "log.stored_entries",  # bisect takes a compiled class for no sequence
    "replication.partition.events",  # NamedTuples of types that are there for checkers only
    "wire.errors",  # an enum with a __new__ of its own
    "wire.header",  # C that a compiler does not finish
}


@cache
def classes(path: Path) -> list[ast.ClassDef]:
    tree = ast.parse(path.read_text())
    return [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]


def name_of(node: ast.AST) -> str:
    """The last name of `a` or `a.b`."""
    return getattr(node, "id", getattr(node, "attr", ""))


def test_a_compiled_class_with_a_length_says_when_it_is_true() -> None:
    """Mypyc holds an optional one for true where it is not None: it looks for `__bool__` only."""
    for path in FILES:
        for cls in classes(path):
            methods = {each.name for each in cls.body if isinstance(each, ast.FunctionDef)}
            assert "__len__" not in methods or "__bool__" in methods, (path.name, cls.name)


def test_nothing_compiled_is_asked_whether_it_is_a_protocol() -> None:
    """What only has its methods is none to mypyc: it would have to say so as a base."""
    protocols = {
        each.name
        for path in FILES
        for each in classes(path)
        if "Protocol" in map(name_of, each.bases)
    }
    assert "Authorizer" in protocols
    for path in FILES:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and name_of(call.func) in ("isinstance", "issubclass"):
                asked = {name_of(each) for each in ast.walk(call.args[1])}
                assert not asked & protocols, (path.name, call.lineno)


def test_no_call_of_a_compiled_function_ignores_types() -> None:
    """It refuses with a TypeError what mypy was told to overlook."""
    compiled = {
        each.name
        for path in FILES
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    assert "fetch_wait" in compiled
    for path in sorted((ROOT / "twisted_broker").rglob("*.py")):
        text = path.read_text()
        lines = enumerate(text.splitlines(), 1)
        ignored = {number for number, line in lines if "type: ignore[arg-type]" in line}
        for call in ast.walk(ast.parse(text)) if ignored else ():
            if isinstance(call, ast.Call) and ignored.intersection(
                range(call.lineno, (call.end_lineno or call.lineno) + 1)
            ):
                assert name_of(call.func) not in compiled, (path.name, call.lineno)


def test_each_module_and_family_is_there() -> None:
    assert all(path.exists() for path in FILES)
    for family in FAMILIES:
        assert (ROOT / "twisted_broker" / "wire" / "messages" / f"{family}.py").exists()
    assert not WRONG.intersection(MODULES)


@pytest.fixture
def backend() -> Any:
    spec = spec_from_file_location("backend", ROOT / "compiled" / "backend.py")
    assert spec is not None and spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("setting", "compiler", "is_compiled"),
    [
        (None, "/bin/true", True),
        (None, "/bin/false", False),
        (None, "/no/compiler", False),
        ("0", "/bin/true", False),
        ("1", "/bin/false", True),
    ],
)
def test_a_wheel_is_compiled_where_a_compiler_is(
    backend: Any,
    monkeypatch: pytest.MonkeyPatch,
    setting: str | None,
    compiler: str,
    is_compiled: bool,
) -> None:
    """Unless REPLOG_COMPILED says what is wanted."""
    monkeypatch.setenv("CC", compiler)
    monkeypatch.delenv("REPLOG_COMPILED", raising=False)
    if setting is not None:
        monkeypatch.setenv("REPLOG_COMPILED", setting)
    assert backend.wanted() is is_compiled


def test_a_checkout_is_plain(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `pip install -e .` asks for first is what a pure wheel needs."""
    monkeypatch.setenv("CC", "/bin/true")
    monkeypatch.setenv("REPLOG_COMPILED", "1")
    found: list[bool] = []
    monkeypatch.setattr(
        backend.build_meta,
        "prepare_metadata_for_build_editable",
        lambda *_: found.append(backend.wanted()),
    )
    backend.prepare_metadata_for_build_editable("there")
    assert found == [False]


def test_a_compiled_wheel_brings_what_compiled_code_imports() -> None:
    """Its metadata is of the same run: a compiled broker did not start without them."""
    program = (
        "import setuptools; from distutils.core import run_setup; "
        "made = run_setup('setup.py', ['dist_info'], stop_after='commandline'); "
        "print(*made.metadata.install_requires, sep='|')"
    )
    found = {}
    for setting in "01":
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"REPLOG_COMPILED": setting},
            capture_output=True,
            text=True,
            check=True,
        )
        found[setting] = done.stdout.split("|")
    names = [re.split("[ <>=]", each.strip())[0] for each in found["1"][len(found["0"]) :]]
    assert names == ["librt", "mypy_extensions"]


def extended() -> Iterator[str]:
    """The compiled classes that an interpreted one extends."""
    compiled = {each.name for path in FILES for each in classes(path)}
    for folder in ("twisted_broker", "tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path in FILES:
                continue
            for cls in classes(path):
                yield from compiled.intersection(map(name_of, cls.bases))


def test_compiled_classes_that_are_extended_are_marked_so() -> None:
    marked = {
        each.name
        for path in FILES
        for each in classes(path)
        if any("allow_interpreted_subclasses" in ast.unparse(one) for one in each.decorator_list)
    }
    assert set(extended()) == marked
