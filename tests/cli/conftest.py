"""A copy of Kafka's golden directory, to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden" / "kafka-4.3.1"


@pytest.fixture
def golden() -> Path:
    return GOLDEN


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "data")
    return tmp_path / "data"
