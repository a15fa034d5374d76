"""Asynchronous pipeline-parallel training with PipeMare, and the experiments of its paper."""

__version__ = "0.1.0"
