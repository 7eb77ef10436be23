"""`replog simulate`, in a process of its own (`command.py`)."""

from twisted_broker.testing.simulated.command import simulate

simulate(prog_name="replog simulate")
