"""The page of `pipemare report`: all tables and figures that are ready, what stands behind each, and what to doubt.

It imports analysis and the figures, and is imported by the command alone.
"""
