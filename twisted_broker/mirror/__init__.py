"""`replog mirror`: topics of any Kafka cluster, copied into one of ours as they are."""
