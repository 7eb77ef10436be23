#!/bin/sh
# Starts a broker for the rest of a CI job, in memory on port 9092, and ends when it serves clients.
# Its log is broker.log; it ends with the job. Options are those of `twistd replog`; with --port 0 it
# takes a free port, which `bootstrap` in broker.json says.
set -eu
rm -f broker.json
nohup twistd --nodaemon --pidfile= replog --data memory --run-file broker.json "$@" >broker.log 2>&1 &
broker=$!
until [ -e broker.json ]; do
    kill -0 "$broker" 2>/dev/null || { cat broker.log; exit 1; }
    sleep 0.1
done
