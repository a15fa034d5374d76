"""The configuration of a run: which settings there are, what they come to, and which of them make it another run.

`load` reads files and command line (through Hydra: `compose`) into the frozen tree of `schema`; `tree` checks each
value, `validate` what does not go together; `resolve` decides what depends on model and data; `identity` names it.
It may import `methods`, `models`, `data`, `pipeline` and `settings`; the rest of `experiment` and all above import it.
"""
