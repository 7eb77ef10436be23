"""Where requests wait for replicas, for records or for their time-out."""
