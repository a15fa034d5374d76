"""Importing this module imports what trainings use, for processes that are forked from the one that has done so."""

import contextlib

from pipemare_exp.errors import UserError
from pipemare_exp.experiment.tracking import tracker as tracking  # noqa: F401
from pipemare_exp.experiment.training import session as train  # noqa: F401
from pipemare_exp.models import resnet  # noqa: F401

# What cannot be imported is not needed, or the training that needs it says what is wrong.
with contextlib.suppress(ImportError):
    tracking.import_mlflow()
    from pipemare_exp.experiment.tracking import mlflow_mirror  # noqa: F401
with contextlib.suppress(ImportError, UserError):
    from pipemare_exp.tasks import translation  # noqa: F401
