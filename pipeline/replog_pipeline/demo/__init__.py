"""`replog pipeline demo`: a year of flights through a three-broker cluster, into a lake, back into
a topic, and into the lake again.

`flights` (records of a public data set), `producers` (stock clients), `cluster` (our brokers as
processes), `steps` (what it does), `command`.
"""
