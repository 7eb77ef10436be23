"""One client: does the job that it is given as its only argument."""

from __future__ import annotations

import importlib
import logging
import sys

from tests.faults.clients.job import Job, Work

MODULES = {"kafka-python": "kafka_python", "confluent-kafka": "confluent", "aiokafka": "aio"}


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    job = Job.from_json(sys.argv[1])
    library = importlib.import_module(f"tests.faults.clients.{MODULES[job.library]}")
    with open(job.file, "a", encoding="utf-8") as file:
        getattr(library, job.role)(Work(job, file))


main()
