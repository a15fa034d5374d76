"""A real pipeline: processes that each hold some stages, execute their columns of a schedule and send messages.

`rank` is one process of it, and calls `stage` for what a stage computes; `transport`, `inbox` and `messages` bring what
it waits for. Imports the rest of `pipeline` but not the emulator; `experiment/runtime` and `bench` import it.
"""
