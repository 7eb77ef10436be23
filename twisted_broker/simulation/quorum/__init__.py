"""Simulated clusters with three controllers, any of which may be struck."""
