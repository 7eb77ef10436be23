"""What a ledger says, and says again."""

from __future__ import annotations

import pytest

from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.guards import check_isolation
from replog_pipeline.lake.ledger import Ledger, from_text


@pytest.mark.parametrize("isolation", [None, "read_committed", "read_uncommitted"])
def test_the_isolation_is_kept(isolation: str | None) -> None:
    kept = from_text(Ledger(1, {"t": None}, {("t", 0): 5}, "x", isolation=isolation).to_text())
    assert kept is not None and kept.isolation == isolation


def test_a_table_has_one_isolation() -> None:
    """Rows of aborted transactions would come among the others without a word."""
    for before, now, cure in (
        ("read_committed", "read_uncommitted", "give it again"),
        ("read_uncommitted", "read_committed", "leave it out again"),
    ):
        ledger = Ledger(1, isolation=before)
        with pytest.raises(PipelineError) as raised:
            check_isolation(ledger, now, "/lake")
        assert cure in str(raised.value) and "another table" in str(raised.value)
        check_isolation(ledger, before, "/lake")
        check_isolation(Ledger(0, isolation=None), now, "/lake")
        check_isolation(Ledger(1, isolation=None), now, "/lake")
