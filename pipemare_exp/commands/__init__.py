"""The commands of `pipemare`, one module each: HELP, add_arguments(parser), run(args) -> exit code.

A command may import everything else, inside its functions where that is slow (torch, MLflow). Only `cli` imports this
folder, and of it the one command that was asked for. `plan_tables` is what `plan` prints.
"""
