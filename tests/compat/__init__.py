"""Stock clients, and raw bytes of the oldest ones, against `twistd replog` as its own process."""
