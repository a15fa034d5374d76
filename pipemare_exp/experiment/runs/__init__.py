"""A run's folder on disk: its small files, its rows, its lock and its checkpoints, and what made it.

It imports errors, paths, what identifies data, and the configuration's YAML. Training, sweeps, tracking, analysis and
the commands import it.
"""
