"""Which stage does what in which slot, which version of its weights it then reads, and what that costs.

Plain data and formulas, without torch. `actions` is at the bottom; `orders` makes schedules of it, `versions` and
`costs` read them, `columns` repeats one for a run of any length. Imports nothing but `pipemare_exp.errors`; methods,
both engines, `pipemare plan` and the figures of costs import it.
"""
