"""What hostile peers send, as one corpus, fired at any Kafka address.

    make hostile
    python -m tests.hostile HOST:PORT [--tls --ca FILE] [--mechanism M --user U --password P]
        [--pid N] [--log FILE] [--markdown FILE] [--only CLASS] [--brief]

Owns the nineteen classes: those of docs/RELIABILITY.md 5.1 and 5.3, and patterns, as connections
that somebody opens.

1. While a class runs, another, ordinary client in a process of its own produces, fetches and reads
   metadata: each of its requests is answered within a second (`bystander.py`).
2. With `--pid`, the server's memory grows by less than 200 MB; with `--log`, no unhandled error is
   written meanwhile.
3. Without SASL there is one pass. With it there are two: what a stranger can do, and then what
   somebody can who has logged in. With `--tls` both go over TLS.
4. A class says what came back, by kind: an answer with its error codes, a closed connection,
   nothing. What must never come back is a violation; the status is 1 if there was one.

| file | what |
|---|---|
| `target.py` | the address: connections, TLS, SASL, requests from dictionaries |
| `bystander.py` | the other client, and the server's memory |
| `run.py` | runs the classes and keeps what they found; the table |
| `own.py` | a broker of ours to fire at: `make hostile`, and the tests |
| `classes.py` | the list |
| `requests.py`, `records.py`, `crowds.py` | the classes: in requests, in records, by number |

Not here: the same on the memory network, one part at a time (`tests/wire/test_hostile.py`,
`tests/wire/test_records_hostile.py`, `tests/api/test_fuzz.py`, `tests/net`), damaged requests
beside Kafka (`tests/compare/hostile.py`).
"""
