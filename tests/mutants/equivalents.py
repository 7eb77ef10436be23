"""Mutants that no test can notice, each with its reason: `equivalent.toml` beside this module.

Owns `equivalents`. A test fails for an entry whose code is no longer there.

Not here: what a key is (`tests/mutants/sites.py`).
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.mutants.sites import Key

PATH = Path(__file__).with_name("equivalent.toml")


def equivalents(path: Path = PATH) -> dict[Key, str]:
    """Their keys -> the reasons."""
    rows = tomllib.loads(path.read_text()).get("mutant", [])
    return {Key(*(row[name] for name in Key._fields)): row["reason"] for row in rows}
