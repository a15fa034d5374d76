"""Largest stable alpha without and with T2 for three problems: how much of the range does T2 give back?"""

from __future__ import annotations

from pathlib import Path

from paper_figures import tables
from paper_figures.theory.t2_roots import CASES, recursions


def draw(out_stem: Path) -> list[Path]:
    """A row a case (tau_f, tau_b, Delta); lambda = 1, D = e^-2."""
    numbers = []
    for forward, backward, sensitivity in CASES:
        edges = {name: one.largest_stable_step() for name, one in recursions(forward, backward, sensitivity).items()}
        numbers.append(
            {
                "tau_f": forward,
                "tau_b": backward,
                "Delta": sensitivity,
                "without_T2": edges["without T2"],
                "with_T2": edges["with T2"],
                "with_T2_delta_late": edges["with T2, delta late"],
            }
        )
    rows = [
        {
            **one,
            "Delta": f"{one['Delta']:g}",
            "without_T2": f"{one['without_T2']:.4f}",
            "with_T2": f"{one['with_T2']:.4f}",
            "with_T2_delta_late": f"{one['with_T2_delta_late']:.4f}",
        }
        for one in numbers
    ]
    columns = [
        ("tau_f", "τ forward"),
        ("tau_b", "τ backward"),
        ("Delta", "Δ"),
        ("without_T2", "without T2"),
        ("with_T2", "with T2"),
        ("with_T2_delta_late", "with T2, its average read τ backward steps late"),
    ]
    return tables.save(
        out_stem,
        "Largest stable step size α on the quadratic (λ = 1, D = exp(-2))",
        columns,
        rows,
        numbers=numbers,
    )
