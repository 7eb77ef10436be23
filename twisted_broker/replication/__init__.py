"""Replicas: leadership, ISR, high watermark, waiting requests."""
