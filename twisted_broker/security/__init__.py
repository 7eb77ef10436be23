"""Principals, and what they are authorized to do."""
