"""Topics of an image for tests of consumer groups."""

import base64

from twisted_broker.image.entries import BrokerRegistration, PartitionRegistration, TopicImage
from twisted_broker.image.metadata_image import MetadataImage


def topic_id(text):
    """An id as Kafka's tools print it."""
    return base64.urlsafe_b64decode(text + "==")


TA, TB = topic_id("XigU19zKRKWcoH-RhPvrAQ"), topic_id("9fxqq3aBTYyEX20g-vC01w")


def topic(name, id, racks):
    """A topic whose partition i has one replica on a broker of each rack in `racks[i]`; None: of
    none.
    """
    partitions = {
        index: PartitionRegistration(
            tuple(_node(rack) for rack in of_partition), (), (), (), (), (), (), 0, 0, 0, 0
        )
        for index, of_partition in enumerate(racks)
    }
    return TopicImage(name, id, partitions)


def image(*topics, offset=0):
    return MetadataImage(
        offset=offset,
        brokers={
            _node(rack): BrokerRegistration(_node(rack), 0, b"", {}, {}, rack, False, False, ())
            for rack in (None, "r1", "r2", "r3")
        },
        topics_by_name={each.name: each for each in topics},
        topics_by_id={each.id: each for each in topics},
    )


def _node(rack):
    return 0 if rack is None else int(rack[1:])
