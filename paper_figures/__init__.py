"""One module per figure or table of the paper; each is a pure function of logged runs, of theory or of costs.

`registry.py` names them all; `pipemare figures --list` says which can be made. A figure is written as SVG and PNG with
the plotted numbers beside it as CSV; a table as Markdown, LaTeX and CSV. What imports this package is
`pipemare_exp.report` and the commands; it imports analysis, methods, theory and the pipeline's schedules and costs, and
trains nothing.
"""
