"""Topics as tables: jobs on Spark over brokers and log directories.

The broker imports none of it.
"""
