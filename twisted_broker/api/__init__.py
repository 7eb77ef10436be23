"""The API table and one coroutine per API."""
