"""`python -m pipemare_exp` is `pipemare`. A rank ties itself to torchrun before anything else is imported."""

import sys

from pipemare_exp.environment import mark, started_by_torchrun
from pipemare_exp.tied import end_with_starter

if started_by_torchrun():
    end_with_starter()
    mark("begun")

from pipemare_exp.cli import main  # noqa: E402

sys.exit(main())
