"""Mirrors of a run's metrics in MLflow or TensorBoard, which can neither break a training nor hold it up.

`guard` is what a training holds, `tracker` writes to MLflow from a thread of its own, `mlflow_mirror` says what is
written there. It imports configuration and run folders; training and the commands import it.
"""
