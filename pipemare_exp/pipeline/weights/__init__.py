"""Where weights lie: the flat buffer of all stages, their past versions, what a pass reads of them, what is optimized.

`reads` is at the bottom, `flat` is the buffer, `history` and `host_history` keep versions, `staged_copies` brings all
stages to what a pass reads at once, `optimizer_groups` gives them to torch's optimizers. Imports nothing of `pipeline`
outside itself; methods, `stage_weights` and both engines import it.
"""
