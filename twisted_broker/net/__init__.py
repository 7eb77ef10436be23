"""Connections in and out: frames, order of answers, back-pressure."""
