"""When does training with delayed weights stay stable? Exact answers on small problems.

- `quadratic.py`: one weight, f(w) = lambda w^2 / 2: recursions, polynomials, stability edges, lemmas.
- `linear_regression.py`: delayed gradient descent on real data, over a grid of delays and step sizes.
"""
