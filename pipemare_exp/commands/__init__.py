"""The commands of `pipemare`, one module each: HELP, add_arguments(parser), run(args) -> exit code."""
