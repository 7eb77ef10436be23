"""A test's cluster for programs of any language: `replog cluster`, over HTTP and JSON.

`verbs.py`: what can be asked, one table, and the OpenAPI document that it gives. `calls.py`: the
cluster's process, several calls at a time. `http_api.py`: the resources. `schema_registry.py`:
Confluent's subjects API, in memory. `command.py`: the command.

Source: our own. Not here: a cluster (`testing/running_cluster.py`).
"""
