"""Where a cluster is, and how a client reaches it.

1. The value of a property is never shown: `repr` has the names only, so that no plan, ledger,
   result or traceback holds a secret.

Not here: where the properties come from (`sources.client_config`), what TLS and SASL make of them
(`replay.secured_socket`).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ClientConfig:
    """The properties of a Java client: names and values."""

    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __repr__(self) -> str:
        return f"ClientConfig({', '.join(name for name, _ in self.properties)})"

    def get(self, name: str, default: str = "") -> str:
        return dict(self.properties).get(name, default)


PLAINTEXT = ClientConfig()


@dataclass(frozen=True)
class KafkaCluster:
    """Brokers at `bootstrap`, HOST:PORT[,HOST:PORT], reached as `client` says."""

    bootstrap: str
    client: ClientConfig = PLAINTEXT

    def __str__(self) -> str:
        return self.bootstrap
