"""`twistd replog`. Listed by every `twistd --help`: imports nothing of ours."""

from twisted.application.service import ServiceMaker

replog = ServiceMaker(
    "Kafka broker",
    "twisted_broker.tap",
    "A Kafka broker: Kafka's wire protocol, files and replication.",
    "replog",
)
