"""What a replica is and does: leadership, ISR, high watermark, waiting requests."""
