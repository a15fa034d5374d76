"""Figures and tables of what a pipeline costs by the model: time, weights, activations. No logged run, no measurement.

They import the pipeline's schedules and costs, and what methods declare of theirs; Table 2 of the runs imports
`memory.py`, the registry imports all by name.
"""
