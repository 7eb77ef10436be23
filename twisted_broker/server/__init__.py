"""One node's composition: what it consists of, and how it starts and stops.

Ring 1. Not here: options (`tap.py`), the service around it (`broker_service.py`).
"""
