"""One module per family of APIs, one class per message for all its versions. A module's card says
what each version adds.

1. Families are independent: import only the one you need.
2. Each family has a route (`api/routes.py`) or is stored in records.

Source: Kafka's message JSON of 4.3.1; of 3.9 for versions that 4.0 removed. Not here: bytes
(`wire/schema.py`), what a request does (`api`).
"""
