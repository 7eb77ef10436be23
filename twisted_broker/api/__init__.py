"""The requests: one table, one way in, one function per API."""
