"""The `replog` command on Kafka's own files, on ours, and on damaged copies of both."""
