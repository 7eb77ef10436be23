"""Types are held by `make lint`, not asserted: a misspelt name of another part turns mypy red where
requests meet the parts of the broker, and where the broker joins them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "twisted_broker"
MISSPELT = {
    "api/produce.py": (
        "replicas.delayed_produce(outcomes, acks)",
        'replicas.delayed_prodcue(outcomes, 1, "x")',
    ),
    "server/metadata_publisher.py": (
        "_replica_manager.apply_delta(delta, image)",
        "_replica_manager.aply_delta(image)",
    ),
}


def test_a_misspelt_name_of_another_part_turns_mypy_red(tmp_path: Path) -> None:
    """Only the two modules are checked; what they import is read for its types."""
    shutil.copytree(ROOT / PACKAGE, tmp_path / PACKAGE)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, (written, misspelt) in MISSPELT.items():
        module = tmp_path / PACKAGE / name
        text = module.read_text()
        assert text.count(written) == 1, (name, written)
        module.write_text(text.replace(written, misspelt))
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--follow-imports=silent"),
            *("--cache-dir", str(tmp_path / "cache")),
            *(f"{PACKAGE}/{name}" for name in MISSPELT),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "MYPYPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = checked.stdout + checked.stderr
    assert checked.returncode == 1, told
    assert '"ReplicaManager" has no attribute "delayed_prodcue"' in told
    assert '"ReplicaManager" has no attribute "aply_delta"' in told
    assert told.count("error:") == len(MISSPELT), told
