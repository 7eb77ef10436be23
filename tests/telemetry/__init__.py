"""Client telemetry: subscriptions, instances, what payloads say."""
