"""What a seed plans, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tests.faults.cluster import SESSION_MS
from tests.faults.kinds import KINDS


def plan(seed: int, rounds: int, kinds: Sequence[str] = ()) -> list[str]:
    """The kinds of a run, in order: all of them (or all of `kinds`) before any comes again."""
    random = Random(f"plan {seed}")
    chosen = sorted(kinds or KINDS)
    order: list[str] = []
    while len(order) < rounds:
        order += random.sample(chosen, len(chosen))
    return order[:rounds]


@dataclass
class Summary:
    """What became of a run. `problems` empty: it passed."""

    rounds: int = 0
    acknowledged: int = 0
    polled: int = 0
    problems: list[str] = field(default_factory=list)
    anomalies: dict[str, int] = field(default_factory=dict)
    moves: list[tuple[str, float]] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        found = (
            ", ".join(f"{count} {name}" for name, count in self.anomalies.items() if count)
            or "none"
        )
        text = [
            (
                f"{self.acknowledged:,} records acknowledged, {self.polled:,} polled; anomalies: "
                f"{found}"
            )
        ]
        for how, bound in (
            ("kill", f"session time-out {SESSION_MS / 1000} s"),
            ("handover", "controlled shutdown"),
        ):
            took = sorted(seconds for which, seconds in self.moves if which == how)
            if took:
                text.append(
                    f"leadership after a {how} ({bound}): median {took[len(took) // 2]:.2f} "
                    f"s, worst {took[-1]:.2f} s of {len(took)}"
                )
        text += [f"client replaced: {each}" for each in self.replaced]
        return text + self.problems
