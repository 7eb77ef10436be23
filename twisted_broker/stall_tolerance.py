"""How late is too late: when a timer shows that this process did not run.

Owns the tolerances. A process that was stopped (SIGSTOP, a suspended machine, a collection, a slow
disk) did not read its sockets; what it did not read meanwhile does not
count as silence of the others.

Source: our own; Kafka's reapers race its network threads instead.
"""

from __future__ import annotations

# Deadlines of requests that wait: sockets are read once more before one of them expires. That costs
# one turn of the reactor, so little is enough.
DEADLINE_STALL_MS = 100
# Silence of a client (group sessions, idle connections): to be wrong costs it its place or its
# connection, so a busy reactor must not look like a stop of the process.
SILENCE_STALL_SECONDS = 1.0
# Silence of a broker, looked for every half second by the controller: a stop must be longer than a
# few rounds that came late.
SESSION_STALL_MS = 2000
# A periodic task is skipped when it comes late by more than this part of its interval.
ROUND_STALL = 0.5
