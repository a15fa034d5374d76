"""The engine that trains on one device with the weights that every pass of a real pipeline would read.

`emulator` makes steps, `ways` holds the ways to run a microbatch and chooses one; the other files serve them. Imports
the rest of `pipeline` but not the runtime; `experiment/training`, `bench` and `gpu_check` import it.
"""
