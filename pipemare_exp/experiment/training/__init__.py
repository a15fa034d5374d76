"""One run from a configuration to an outcome: what trains is assembled, a loop trains, the user is told.

It imports the configuration, run folders and tracking of `experiment`, and everything below. The runtime, the
sweeps, `evaluate` and `pipemare train` import it.
"""
