"""Our answers beside Apache Kafka's: `make compare KAFKA=HOST:PORT`.

KAFKA is a node of 4.3.1, broker and controller in one, formatted afresh (a second run needs a fresh
one again), with `node.id=1`, replication factors of 1 for its internal topics and
`group.initial.rebalance.delay.ms=0`. Ours is started here with the same settings.

| file | what |
|---|---|
| `run.py` | starts our broker, goes through the cases on both, prints what differs |
| `side.py` | one broker: connections, requests from dictionaries, what must differ |
| `members.py` | groups of two and three members, also static, with rebalances under way |
| `data_cases.py`, `group_cases.py`, `admin_cases.py` | the cases, a function per API |
| `controller_cases.py` | those on the controller's listener, found by DescribeQuorum |
| `hostile.py` | `--hostile COUNT`: damaged requests to both, kinds of results side by side |
| `differences.py` | two answers field by field |
| `allowed.py` | THE table of what may differ, each row with its reason |

Every function is called at its API's lowest, a middle and its highest version. Something that
differs and is not listed makes status 1, and so does a row of the table that nothing used. A new
API is a function in one of the files of cases: a test fails when an API that we serve to clients
has none.
"""
