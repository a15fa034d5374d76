"""Which stage does what in which slot, which version of its weights it then reads, and what that costs.

Plain data and formulas, without torch. `actions` is at the bottom; `event_walk` says when its operations start;
`orders` makes schedules, `versions`, `timing` and `costs` read them, `comparison` lists what each costs, `columns`
repeats one for a run of any length. Imports nothing but `pipemare_exp.errors`; methods, both engines, `pipemare plan`
and the figures of costs import it.
"""
