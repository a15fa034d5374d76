"""`python -m pipemare_exp.gpu_check ...` is `pipemare gpu ...`, also where nothing is installed."""

import sys

from pipemare_exp.cli import main

sys.exit(main(["gpu", *sys.argv[1:]]))
