"""Random mutants of ring 0: how many the tests notice (`make mutants`)."""
