"""The error of a writer whose batch number another writer has committed: none of its own rows is
in the table.
"""

from __future__ import annotations

from replog_pipeline.errors import PipelineError


class AnotherWriterError(PipelineError):
    """The writer may read the ledger again and go on from there."""

    def __init__(self, place: str, batch: int) -> None:
        super().__init__(
            f"another archive wrote batch {batch} of {place} meanwhile: a table has one "
            "writer; stop the other one"
        )
