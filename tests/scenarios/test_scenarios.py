"""The stories of this directory are true.

`python -m twisted_broker.testing.scenario.__main__ FILE` shows one as it happens.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from twisted_broker.testing.scenario.__main__ import perform

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


def test_there_are_enough() -> None:
    """Issue 4, section 3: at least 25 stories."""
    assert len(STORIES) >= 25


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_story(story: Path) -> None:
    perform(story)
