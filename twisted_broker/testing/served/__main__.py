"""As `replog cluster`, where the command is not installed."""

from twisted_broker.testing.served.command import cluster

cluster()
