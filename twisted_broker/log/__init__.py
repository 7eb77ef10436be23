"""One directory per replica, in Apache Kafka's own files; everything through the disk port."""
