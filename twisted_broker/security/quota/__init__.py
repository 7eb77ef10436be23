"""Quotas: how much a client may use, and for how long it waits when it has used more."""
