"""A model as a pipeline sees it: weight units, stages, pieces that run by themselves, and its dropout masks.

`units` finds and groups the units, `cutting` gives each stage of a real pipeline its pieces, `recompute` runs segments
again, `dropout` keys the masks. Imports nothing of `pipeline` outside itself; `shape`, both engines and the assembly of
experiments import it.
"""
