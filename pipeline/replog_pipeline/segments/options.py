"""The options of the `kafka-segments` data source, checked: a wrong one is one line that names it
and says what is right.

    path         log directories or TOPIC-PARTITION folders, comma-separated
    topics       topics, comma-separated; none: all that are not internal
    isolation    read_uncommitted (default) or read_committed
    upto         high_watermark (default) or log_end
    control      true: control records too (default false)
    crc          fail (default) or flag: damaged batches as rows with crcOk = false
    startingOffsets, endingOffsets    {"TOPIC": {"0": 17}}, inclusive and exclusive; a partition
    that is not named: as far as there is
    timestamps   fail (default) or null: what Spark cannot hold is null; timestampMs has it
    onlyNamed    true: a partition that startingOffsets does not name is not read (default false;
    not in a stream)

Names are matched without case, as Spark does. Not here: what they mean on disk (`log_view`,
`plan`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from replog_pipeline.columns import Offsets
from replog_pipeline.decoder import FAIL, FLAG
from replog_pipeline.errors import PipelineError
from replog_pipeline.segments.log_view import HIGH_WATERMARK, ISOLATION, UNCOMMITTED, UPTO

ONLY_IN_BATCHES: Final = "option onlyNamed: a stream reads all partitions: leave it out"
_BOOLEANS: Final = {"true": True, "false": False}
_KNOWN: Final = (
    "path",
    "topics",
    "isolation",
    "upto",
    "control",
    "crc",
    "startingOffsets",
    "endingOffsets",
    "onlyNamed",
    "timestamps",
)


@dataclass(frozen=True)
class SegmentOptions:
    """See the module."""

    directories: tuple[str, ...]
    topics: tuple[str, ...] = ()
    isolation: str = UNCOMMITTED
    upto: str = HIGH_WATERMARK
    control: bool = False
    crc: str = FAIL
    start: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    only_named: bool = False
    lenient: bool = False


def parse_options(given: Mapping[str, str]) -> SegmentOptions:
    """PipelineError for an option that is not known, a value that is none, or no path."""
    known = {name.lower(): name for name in _KNOWN}
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise PipelineError(
            f"option {unknown[0]} is not known to kafka-segments: it knows {', '.join(_KNOWN)}"
        )
    directories = _split(options.get("path", ""))
    if not directories:
        raise PipelineError(
            "option path: name the log directory, as in .load('/var/lib/kafka') or "
            ".option('path', ...)"
        )
    return SegmentOptions(
        directories,
        _split(options.get("topics", "")),
        _one_of("isolation", options, ISOLATION),
        _one_of("upto", options, UPTO),
        _BOOLEANS[_one_of("control", options, ("false", "true"))],
        _one_of("crc", options, (FAIL, FLAG)),
        _offsets("startingOffsets", options),
        _offsets("endingOffsets", options),
        _BOOLEANS[_one_of("onlyNamed", options, ("false", "true"))],
        _one_of("timestamps", options, (FAIL, "null")) == "null",
    )


def offsets_option(offsets: Offsets) -> str:
    """The text of startingOffsets or endingOffsets."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(nested)


def _split(names: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


def _one_of(name: str, options: Mapping[str, str], allowed: tuple[str, ...]) -> str:
    value = str(options.get(name.lower(), allowed[0])).lower()
    if value not in allowed:
        raise PipelineError(
            f"option {name}: {options[name.lower()]!r} is none of {', '.join(allowed)}"
        )
    return value


def _offsets(name: str, options: Mapping[str, str]) -> Offsets:
    text = options.get(name.lower(), "{}")
    try:
        nested = json.loads(text)
        return {
            (topic, int(partition)): int(offset)
            for topic, numbers in nested.items()
            for partition, offset in numbers.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise PipelineError(
            f'option {name}: {text!r} is not of the form {{"TOPIC": {{"0": 17}}}}'
        ) from None
