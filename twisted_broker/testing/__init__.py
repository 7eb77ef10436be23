"""Memory twins, simulation, stories, and the judge of histories.

`sim_*`: machines, disks, network, clients and clocks under a seed; `fault_*`: what goes wrong with
them; `check_*`: what must hold all the same; `simulate` runs seeds. `scenario_*`: the language of
stories; `scenario` performs one. `history`, `anomalies`: what clients of any run were told, and
what is wrong with it. `memory_*`: twins in which nothing goes wrong, for tests of one part.
"""
