"""The replica layer on memory twins and a clock that only moves when told."""
