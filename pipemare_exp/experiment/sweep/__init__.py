"""Studies: which trainings a file in sweeps/ asks for, how far they are, and how they are trained side by side.

`study_file` reads a study, `study` expands it into cells, `plan` finds each cell's run, `run` trains what is missing
through a launcher (`fork_launcher` is our own), `worker` is one job, `display` shows all of them. It imports the rest
of `experiment` but `runtime`; the commands import it.
"""
