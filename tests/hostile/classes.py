"""The nineteen classes, in the order in which they are fired."""

from __future__ import annotations

from tests.hostile import crowds, records, requests, telemetry
from tests.hostile.run import Attack

CLASSES: dict[str, Attack] = {
    "frame lengths": requests.frame_lengths,
    "SASL phase": requests.sasl_phase,
    "counts and lengths": requests.counts_and_lengths,
    "tagged fields": requests.tagged_fields,
    "varints": requests.varints,
    "empty arrays": requests.empty_arrays,
    "names": requests.names,
    "patterns": requests.patterns,
    "authorisation": requests.authorisation,
    "record batches": records.record_batches,
    "decompression bombs": records.decompression_bombs,
    "client telemetry": telemetry.client_telemetry,
    "slow clients": crowds.slow_clients,
    "connection floods": crowds.connection_floods,
    "request queue": crowds.request_queue,
    "announced lengths": crowds.announced_lengths,
    "amplification by answers": crowds.amplification,
    "per-client state": crowds.per_client_state,
    "admin floods": crowds.admin_floods,
}
