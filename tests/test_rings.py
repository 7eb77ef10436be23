"""The rings of docs/ARCHITECTURE.md 3 are held by `make lint`, not asserted: what must not be
imported turns it red, and no module of ring 0 is missing in the contract.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parent.parent
PACKAGE = "twisted_broker"
DECIDING = ("wire", "log", "image", "replication", "cluster", "coordinator", "security")
INJECTED = ("log/index.py", "replication/partition/isr_state.py", "coordinator/membership.py")


def ring_0_contract() -> dict[str, list[str]]:
    """The contract of pyproject.toml."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert linter["exclude_type_checking_imports"] is False, "imports for types count, too"
    return next(each for each in linter["contracts"] if each["name"].startswith("ring 0"))


def test_an_import_of_twisted_into_ring_0_turns_the_linter_red(tmp_path: Path) -> None:
    """Three modules that decide, each with the reactor imported, in a copy of the package."""
    shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in INJECTED:
        module = tmp_path / PACKAGE / name
        head, future, body = module.read_text().partition("from __future__ import annotations\n")
        module.write_text(f"{head}{future}from twisted.internet import reactor\n{body}")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    linted = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    told = " ".join(linted.stdout.split())
    assert linted.returncode == 1, told
    for name in INJECTED:
        dotted = f"{PACKAGE}.{name.removesuffix('.py').replace('/', '.')}"
        assert f"{dotted} -> twisted (l." in told


def test_every_module_that_can_be_in_ring_0_is() -> None:
    """A new module that reaches nothing of the world is named in the contract, or in a package
    that is.
    """
    contract = ring_0_contract()
    forbidden, named = set(contract["forbidden_modules"]), tuple(contract["source_modules"])
    graph = grimp.build_graph(
        PACKAGE,
        include_external_packages=True,
        exclude_type_checking_imports=False,
        cache_dir=None,
    )
    packages = {module.rpartition(".")[0] for module in graph.modules}
    inside = tuple(f"{PACKAGE}.{name}." for name in DECIDING)
    missing = [
        module
        for module in sorted(graph.modules - packages)
        if module.startswith(inside)
        and not graph.find_upstream_modules(module) & forbidden
        and not any(module == each or module.startswith(f"{each}.") for each in named)
    ]
    assert not missing, "name them in ring 0's contract of pyproject.toml"
