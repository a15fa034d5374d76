"""Figures and tables of the quadratic model and of linear regression: formulas and simulations, no logged run.

They import `pipemare_exp.theory` and the style; the registry imports them by name.
"""
