"""From settings to a trained run on disk: configuration, training on either engine, the run's folder, sweeps of runs.

`config` and `runs` are at the bottom; `tracking` mirrors runs; `training` trains one, `runtime` one on a real pipeline;
`sweep` trains many. It imports tasks, methods, models, data and `pipeline`; analysis and all above import it.
"""
