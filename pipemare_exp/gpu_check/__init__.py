"""What is checked, timed and trained on a GPU machine without a network and with little installed.

cases.py     models, methods and minibatches for checks and benches
equality.py  the same training on CPU and GPU
captured.py  steps in CUDA graphs against eager ones, bit for bit
speed.py     eager against graphs, seconds an epoch
cells.py     configurations resolved on a machine with Hydra, trained in pieces on one without
"""
