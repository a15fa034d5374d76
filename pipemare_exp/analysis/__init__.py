"""Logged runs as rows, and what they allow one to say: means, intervals, paired differences, verdicts.

It imports run folders, the configuration's identity, methods and metrics. The figures, the report and the commands
import it; it knows none of them, and draws nothing.
"""
