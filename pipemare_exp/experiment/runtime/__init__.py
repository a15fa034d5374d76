"""Training runs on a real pipeline (engine=runtime): from `pipemare train` to the processes, and back to a run folder.

`launch` starts the processes, `worker` is what each of them does, `engine` and `loop` train on rank 0 as the emulator
and its loop do in one process. Imports `pipeline.runtime` and `experiment`'s configuration, runs and training; commands
and `experiment/evaluate` import it.
"""
