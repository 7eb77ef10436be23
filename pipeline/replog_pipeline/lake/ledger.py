"""What a table has taken from its topics: per topic its id, per partition the next offset; and
the number of the last batch.

1. A ledger is committed in the same atomic step as its rows: the table has exactly the offsets
   that the ledger counts.
2. Batches are numbered 1, 2, 3 ...; 0 is a table that does not exist yet.
3. `attempt` is unique for every try to append, so that a writer recognises its own commit.

Source: our own. Not here: where the text is kept (`delta`, `parquet`), what may
come next (`guards`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from replog_pipeline.columns import Offsets
from replog_pipeline.errors import PipelineError
from replog_pipeline.lake.layout import BY_DATE, Layout

VERSION = 1
UPSERT_VERSION = 2
"""Of a table that holds the last value of each key: who only knows version 1 would append to it.
"""


@dataclass(frozen=True)
class Ledger:
    """`ids`: topic -> topic id as Kafka prints it, None where the source has none.

    `next`: the first offset that is not in the table. `decoded`: its rows have their values
    decoded. `upsert`: it holds the last value of each key, not every record. `isolation`: what its
    rows were read with; None in a ledger of before this was kept. `layout`: see `layout`.
    """

    batch: int = 0
    ids: Mapping[str, str | None] = field(default_factory=dict)
    next: Offsets = field(default_factory=dict)
    attempt: str = ""
    decoded: bool = False
    upsert: bool = False
    isolation: str | None = None
    layout: Layout = BY_DATE

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted(self.ids))

    def after(self, ids: Mapping[str, str | None], end: Offsets) -> Ledger:
        """The ledger of the next batch, which brings the table to `end`.

        An id once known is kept.
        """
        known = {topic: topic_id or self.ids.get(topic) for topic, topic_id in ids.items()}
        return replace(
            self,
            batch=self.batch + 1,
            ids={**self.ids, **known},
            next={**self.next, **end},
            attempt=uuid.uuid4().hex,
        )

    def to_text(self) -> str:
        return json.dumps({"replog": self.to_json()}, sort_keys=True)

    def to_json(self) -> dict[str, object]:
        topics: dict[str, dict[str, object]] = {
            topic: {
                "id": self.ids[topic],
                "next": {
                    str(number): offset
                    for (name, number), offset in sorted(self.next.items())
                    if name == topic
                },
            }
            for topic in self.topics
        }
        more: dict[str, object] = {"decoded": True} if self.decoded else {}
        if self.isolation is not None:
            more["isolation"] = self.isolation
        if self.layout != BY_DATE:
            more["layout"] = self.layout.to_json()
        return {
            "version": UPSERT_VERSION if self.upsert else VERSION,
            "batch": self.batch,
            "attempt": self.attempt,
            "topics": topics,
            **more,
        }


def from_text(text: str | None) -> Ledger | None:
    """The ledger in `text`; None where it holds none. `ValueError` for one of another version or
    without its parts.
    """
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    body = found.get("replog") if isinstance(found, dict) else None
    if not isinstance(body, dict):
        return None
    if body.get("version") not in (VERSION, UPSERT_VERSION):
        raise ValueError(
            f"a ledger of version {body.get('version')}, but this replog knows {VERSION} and "
            f"{UPSERT_VERSION}: use a newer replog"
        )
    try:
        topics = body["topics"]
        offsets = {
            (topic, int(number)): int(offset)
            for topic, entry in topics.items()
            for number, offset in entry["next"].items()
        }
        ids = {topic: entry["id"] for topic, entry in topics.items()}
        decoded = body.get("decoded") is True
        upsert = body["version"] == UPSERT_VERSION
        isolation = body.get("isolation")
        layout = Layout.of(body["layout"]) if "layout" in body else BY_DATE
        return Ledger(
            int(body["batch"]), ids, offsets, body["attempt"], decoded, upsert, isolation, layout
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            "a ledger without all of its parts: restore it from a copy of the table"
        ) from error


def found_in(text: str | None, place: str) -> Ledger | None:
    """`from_text`, with PipelineError that names the place."""
    try:
        return from_text(text)
    except ValueError as error:
        raise PipelineError(f"{place}: {error}") from None
