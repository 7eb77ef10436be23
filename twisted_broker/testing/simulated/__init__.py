"""A program of the user's, with a cluster, in virtual time under a seed: `replog simulate FILE`.

`run`: one seed. `loop`: the event loop of a program, `controlled`: what else it sees of the system.
`virtual_world`: where its machines and the brokers' are. `faults`: what is done to them, and when.
`many`, `command`: many seeds, and the command line.
"""
