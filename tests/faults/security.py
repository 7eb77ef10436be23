"""A cluster with SASL_SSL and SCRAM on all connections: settings of its nodes, and their user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.faults.clients.job import MECHANISM, PASSWORD, USER
from tests.faults.node import Node

PLAINTEXT, SASL_SSL = "PLAINTEXT", "SASL_SSL"
_JAAS = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    f'username="{USER}" password="{PASSWORD}";'
)


def secured(certificates: Path) -> dict[str, str]:
    """Of a node; its listener PLAINTEXT stays plain, for `asking` alone."""
    listeners = ("CLIENTS", "BROKERS", "CONTROLLER")
    mechanism = MECHANISM.lower()
    return {
        "listener.security.protocol.map": ",".join(
            ["PLAINTEXT:PLAINTEXT", *(f"{name}:{SASL_SSL}" for name in listeners)]
        ),
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "sasl.mechanism.controller.protocol": MECHANISM,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
    } | {f"listener.name.{name.lower()}.{mechanism}.sasl.jaas.config": _JAAS for name in listeners}


def add_user(controller: Node) -> None:
    """Before its first start: nodes and clients are this user."""
    subprocess.run(
        [
            *(sys.executable, "-m", "twisted_broker.cli.main", "format", "--data", controller.data),
            *("--set", f"node.id={controller.settings['node.id']}"),
            *("--add-scram", f"{MECHANISM}=[name={USER},password={PASSWORD}]"),
        ],
        check=True,
        capture_output=True,
    )
