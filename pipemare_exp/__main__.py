"""`python -m pipemare_exp` is `pipemare`."""

import sys

from pipemare_exp.cli import main

sys.exit(main())
