"""Figures and tables of logged runs, each with `missing` (what the runs lack for it) and `draw`.

They take rows (`pipemare_exp.analysis.row`) and read no file; `select.py` decides which rows belong together. The
registry imports them by name.
"""
