"""A run as a file: its options, and the actions that are done in it.

Owns `RecordedRun`: JSON, an action a line, to be read and edited by hand. `python -m
twisted_broker.simulation --replay FILE` runs it.

Not here: how a file becomes short (`simulation/shrink.py`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from twisted_broker.simulation.options import Options
from twisted_broker.simulation.schedule import Action


@dataclass(frozen=True)
class RecordedRun:
    """`violation`: what the run is known to end with, "" when with nothing."""

    options: Options
    actions: list[Action]
    violation: str

    def save(self, path: Path) -> None:
        content = {
            "violation": self.violation,
            "options": asdict(self.options),
            "actions": [str(action) for action in self.actions],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> RecordedRun:
        """Raises ValueError with one line when it is not such a file."""
        try:
            content = json.loads(path.read_text())
            return cls(
                _value(Options, content["options"]),
                [Action.of(text) for text in content["actions"]],
                content["violation"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a recorded run: {error!r}") from error


def _value(kind: Any, content: Any) -> Any:
    """The value of a type that JSON made this of."""
    if is_dataclass(kind):
        kinds = get_type_hints(kind)
        unknown = content.keys() - {each.name for each in fields(kind)}
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        made = {name: _value(kinds[name], value) for name, value in content.items()}
        return kind(**made)  # type: ignore[operator]
    if get_origin(kind) is list:
        return [_value(get_args(kind)[0], each) for each in content]
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        parts = parts[:1] * len(content) if parts[-1] is Ellipsis else parts
        return tuple(_value(part, each) for part, each in zip(parts, content, strict=True))
    return content
