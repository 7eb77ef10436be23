"""What `benchmarks/scale.py` says of figures."""

from __future__ import annotations

from benchmarks.scale import Rows, growth, is_worse, picture, table

LINEAR: dict[float, float] = {10: 1.0, 100: 10.0}
WORSE_THAN_LINEAR: dict[float, float] = {10: 1.0, 100: 30.0}
FLAT: dict[float, float] = {10: 3.0, 100: 3.0}


def test_growth_is_of_the_cost_over_that_of_the_size() -> None:
    assert [growth(row) for row in (LINEAR, WORSE_THAN_LINEAR, FLAT)] == [1.0, 3.0, 0.1]
    assert growth({10: 0.0, 100: 5.0}) == 0.0  # no smallest cost to compare with


def test_noise_is_not_worse_than_linear() -> None:
    """A cost below the floor of its unit says nothing, nor does the clock of a busy machine."""
    assert is_worse("restart: s", WORSE_THAN_LINEAR, is_idle=True)
    assert not is_worse("restart: s", WORSE_THAN_LINEAR, is_idle=False)
    assert is_worse("restart, server CPU: s", WORSE_THAN_LINEAR, is_idle=False)
    assert not is_worse("restart: s", LINEAR, is_idle=True)
    assert not is_worse("first fetch: ms", WORSE_THAN_LINEAR, is_idle=True)


def test_the_picture_has_each_kind_and_figure() -> None:
    rows: Rows = {"restart: s": LINEAR, "memory: MB": FLAT, "nothing: s": {10: 0.0, 100: 0.0}}
    drawn = picture({"partitions": rows, "connections": {"open all: s": FLAT}})
    texts = ("partitions: cost to", "open all: s (3 to 3)<", "nothing: s (0 to 0)<")
    assert all(f">{text}" in drawn for text in texts)
    assert table("partitions", rows).splitlines()[2] == "| restart: s | 1 | 10 | 1.00 |"
