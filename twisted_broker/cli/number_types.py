"""The types of numeric options and arguments: of `replog`, and of its jobs in the pipeline.

Owns `WholeNumber` and `Number`, click's ranges over text as settings are read (`java_numbers`):
Python's `int` and `float`, which click's own types use, take `1_0`, blanks, `inf` and `nan` too.

Source: our own. Not here: what a range means.
"""

from __future__ import annotations

from typing import Any

import click

from twisted_broker.java_numbers import parse_double, parse_whole


class WholeNumber(click.IntRange):
    """As `click.IntRange`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """A default is a number already."""
        try:
            number = parse_whole(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return super().convert(number, param, ctx)


class Number(click.FloatRange):
    """As `click.FloatRange`."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """A default is a number already."""
        try:
            number = parse_double(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return super().convert(number, param, ctx)
