"""One module per figure or table of the paper; each is a pure function of logged runs, of theory or costs.

`registry.py` names them all; `pipemare figures --list` says which can be made. A figure is written as SVG
and PNG with the plotted numbers beside it as CSV; a table as Markdown, LaTeX and CSV. Nothing in the
package imports this one: figures read runs, runs know nothing of figures.
"""
