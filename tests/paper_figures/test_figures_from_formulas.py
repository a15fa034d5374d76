"""Figures of theory and costs: the CSV of each against formulas written here, and the same bytes each time."""

from __future__ import annotations

import math

import pytest
import yaml
from PIL import Image

from paper_figures.costs import activations, frontier, memory, recompute_memory, schedules, table1, utilization
from paper_figures.theory import discrepancy as theory_discrepancy
from paper_figures.theory import divergence as theory_divergence
from paper_figures.theory import heatmap as theory_heatmap
from paper_figures.theory import momentum as theory_momentum
from paper_figures.theory import t2_range as theory_t2_range
from paper_figures.theory import t2_roots as theory_t2_roots
from paper_figures.theory import t2_table as theory_t2_table
from pipemare_exp.analysis import published


def test_schedules_cells_follow_the_slot_model(tmp_path, table):
    lines = table(schedules.draw(tmp_path / "figure")[2])
    p, n = schedules.STAGES, schedules.MICROBATCHES
    duplex = [line for line in lines if "duplex" in line["panel"]]
    assert len(duplex) > 50
    for line in duplex:
        stage, g, slot = int(line["stage"]), int(line["microbatch"]), int(line["slot"])
        delay = 2 * (p - 1 - stage) + 1
        assert slot == (g + stage if line["op"] == "F" else g + 2 * p - 1 - stage)
        assert int(line["version"]) == (max(0, (g - delay) // n) if line["op"] == "F" else g // n)
    gpipe = [line for line in lines if line["panel"] == "GPipe"]
    assert all(line["version"] == line["step"] for line in gpipe)
    stashed = {
        (line["stage"], line["microbatch"], line["op"]): line["version"]
        for line in lines
        if line["panel"].startswith("PipeDream")
    }
    both = [key for key in stashed if key[2] == "B" and (key[0], key[1], "F") in stashed]
    assert both
    assert all(stashed[key] == stashed[(key[0], key[1], "F")] for key in both)
    # no stage runs two operations in one alternating slot
    alternating = [(line["panel"], line["stage"], line["slot"]) for line in lines if "duplex" not in line["panel"]]
    assert len(alternating) == len(set(alternating))


def test_utilization_is_n_over_n_plus_p_minus_1(tmp_path, table):
    lines = table(utilization.draw(tmp_path / "figure")[2])
    for line in lines:
        p, n = int(line["stages"]), int(line["microbatches"])
        expected = n / (n + p - 1) if line["method"] == "gpipe" else 1.0
        assert float(line["utilization"]) == pytest.approx(expected)
    ratios = {(line["stages"], line["microbatches"]): float(line["gpipe_ratio"]) for line in lines}
    assert ratios[("107", "32")] == 4.3125
    assert ratios[("107", "8")] == 14.25


def test_memory_counts(tmp_path, table):
    for line in table(memory.draw(tmp_path / "figure")[2]):
        p, n = int(line["stages"]), int(line["microbatches"])
        extra = {"gpipe": 0, "pipedream": p / n, "pipemare": 1, "pipemare_no_t2": 0}[line["method"]]
        assert float(line["memory_W"]) == pytest.approx(2 + extra)


def test_frontier_holds_every_schedule_and_says_what_cannot_be_had(tmp_path, table, monkeypatch):
    monkeypatch.setattr(frontier, "STAGES", (4, 8))
    lines = table(frontier.draw(tmp_path / "figure")[2])
    assert {(line["P"], line["N"]) for line in lines} == {(str(p), str(n)) for p in (4, 8) for n in (p // 4, p, 4 * p)}
    for line in lines:
        p, n = int(line["P"]), int(line["N"])
        if line["why_not"]:
            assert line["schedule"] == "dualpipe_v" and n < 2 * p and not line["throughput"]
        elif line["slots"]:
            assert float(line["throughput"]) == pytest.approx(1)
            held = 2 * p - 1 if line["slots"] == "duplex" else p
            assert float(line["activations_minibatches"]) == pytest.approx(held / n)
        elif line["schedule"] in ("gpipe", "1f1b"):
            assert float(line["throughput"]) == pytest.approx(n / (n + p - 1))
        elif line["schedule"] in ("zb_v", "zb_h2") and n == 4 * p:
            assert float(line["throughput"]) == pytest.approx(1)


def test_table1_numbers_and_sources(tmp_path, table):
    markdown, tex, numbers = table1.draw(tmp_path / "table")
    lines = table(numbers)
    assert {(line["P"], line["N"]) for line in lines} == {(p, n) for p in ("107", "93", "91") for n in ("8", "32")}
    for line in lines:
        p, n = int(line["P"]), int(line["N"])
        asynchronous = line["method"] != "gpipe"
        assert float(line["tau_fwd_first"]) == pytest.approx((2 * p - 1) / n if asynchronous else 0)
        assert float(line["tau_fwd_mean"]) == pytest.approx(p / n if asynchronous else 0)
        assert float(line["tau_bkwd_mean"]) == pytest.approx(p / n if line["method"] == "pipedream" else 0)
        base = 2 if p == 107 else 3  # momentum; AdamW's two moments
        extra = {"gpipe": 0, "pipedream": p / n, "pipemare": 1, "pipemare_no_t2": 0}[line["method"]]
        assert float(line["memory_W"]) == pytest.approx(base + extra)
    text = markdown.read_text()
    assert "up to 4.3 [A, D]" in text
    assert "Source A:" in text
    assert "PipeDream over PipeMare without T2 at P = 107, N = 32: 2.67" in text
    assert tex.read_text().count(r"\\") == len(lines) + 4 + 1 + len(text.split("\n\n")[-1].splitlines())


def test_activations_and_recompute_table(tmp_path, table):
    for line in table(activations.draw(tmp_path / "figure")[2]):
        p = int(line["stages"])
        if not line["segment"]:
            assert int(line["activations"]) == p * p
        elif p % int(line["segment"]) == 0:
            s = int(line["segment"])
            assert int(line["activations"]) == p * s + p * p // s - p
    for line in table(recompute_memory.draw(tmp_path / "table")[2]):
        assert float(line["share"]) == pytest.approx(int(line["activations"]) / int(line["P"]) ** 2)
        if line["S"]:
            assert int(line["ring"]) == math.ceil((2 * int(line["S"]) - 1) / 8)


def test_divergence_on_the_quadratic(tmp_path, table):
    lines = table(theory_divergence.draw(tmp_path / "figure")[2])
    for tau in (0, 5, 10):
        w = [1.0] * (tau + 1)
        for _ in range(theory_divergence.STEPS):
            w.append(w[-1] - 0.2 * w[-1 - tau])
        losses = [float(line["loss"]) for line in lines if line["tau"] == str(tau)]
        assert losses == pytest.approx([value * value / 2 for value in w[tau:]], rel=1e-8, abs=1e-20)
    assert losses[-1] > 10 * losses[0]  # tau = 10 diverges


def test_divergence_under_discrepancy(tmp_path, table):
    lines = table(theory_discrepancy.draw(tmp_path / "figure")[2])
    for sensitivity in (0, 3, 5):
        w = [1.0] * 11
        for _ in range(theory_discrepancy.STEPS):
            w.append(w[-1] - 0.12 * ((1 + sensitivity) * w[-11] - sensitivity * w[-7]))
        losses = [float(line["loss"]) for line in lines if float(line["Delta"]) == sensitivity]
        assert losses == pytest.approx([value * value / 2 for value in w[10:]], rel=1e-7, abs=1e-20)


def test_heat_map_edges_follow_lemma_1(tmp_path, table, monkeypatch):
    monkeypatch.setattr(theory_heatmap, "DELAYS", (0, 4, 8))
    monkeypatch.setattr(theory_heatmap, "EDGE_DELAYS", (0, 3, 8))
    monkeypatch.setattr(theory_heatmap, "STEPS", 1500)
    paths = theory_heatmap.draw(tmp_path / "figure")
    lines = table(paths[2])
    for line in [line for line in lines if line["kind"] == "edge"]:
        expected = 2 / float(line["lambda"]) * math.sin(math.pi / (4 * int(line["tau"]) + 2))
        assert float(line["alpha"]) == pytest.approx(expected, rel=0.05)
    losses = [line for line in lines if line["kind"] == "loss"]
    assert len(losses) == 3 * 80
    for line in losses:
        expected = 2 / float(line["lambda"]) * math.sin(math.pi / (4 * int(line["tau"]) + 2))
        if float(line["alpha"]) < 0.95 * expected:
            assert float(line["loss"]) < 0.5  # below the loss of w = 0 for a target of variance 1
        if float(line["alpha"]) > 1.1 * expected:
            assert float(line["loss"]) > 10


def test_t2_figures(tmp_path, table, monkeypatch):
    lines = table(theory_t2_table.draw(tmp_path / "table")[2])
    found = [[float(line[key]) for key in ("without_T2", "with_T2", "with_T2_delta_late")] for line in lines]
    expected = [[0.0381, 0.106, 0.116], [0.0057, 0.0377, 0.0181], [0.0176, 0.0971, 0.0971]]
    for got, want in zip(found, expected, strict=True):
        assert got == pytest.approx(want, rel=0.01)
    for line in table(theory_t2_roots.draw(tmp_path / "roots")[2]):
        root, alpha, edge = (float(line[key]) for key in ("largest_root", "alpha", "largest_stable_alpha"))
        if 0 < alpha < 0.999 * edge:
            assert root < 1 + 1e-9
    monkeypatch.setattr(theory_t2_range, "DECAYS", [math.exp(-2)])
    ranges = table(theory_t2_range.draw(tmp_path / "range")[2])
    assert [float(line["largest_stable_alpha"]) for line in ranges] == pytest.approx(
        [row[1] for row in expected], rel=0.01
    )


def test_momentum_figure(tmp_path, table):
    for line in table(theory_momentum.draw(tmp_path / "figure")[2]):
        lemma = 2 * math.sin(math.pi / (4 * int(line["tau"]) + 2))
        edge = float(line["largest_stable_alpha"])
        if float(line["beta"]) == 0:
            assert edge == pytest.approx(lemma, rel=1e-4)
        else:
            assert edge < 2 * lemma


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    for module in (memory, theory_divergence, table1):
        first, second = module.draw(tmp_path / "a" / "figure"), module.draw(tmp_path / "b" / "figure")
        for one, other in zip(first, second, strict=True):
            assert one.read_bytes() == other.read_bytes()


def test_pictures_are_whole(tmp_path):
    svg, png, _ = memory.draw(tmp_path / "figure")
    with Image.open(png) as image:
        image.load()
        assert image.width == pytest.approx(6.9 * 200, abs=2)
    assert svg.read_text().rstrip().endswith("</svg>")
    assert "<dc:date>" not in svg.read_text()


def test_every_published_number_has_a_source():
    tree = yaml.safe_load((published.resources.files("pipemare_exp.analysis") / "published.yaml").read_text())
    assert len(tree["numbers"]) >= 15
    for one in tree["numbers"]:
        assert one["source"]
        assert set(one["source"]) <= set(tree["sources"])
    (best,) = published.numbers("best", task="iwslt14", method="t1+t2+t3")
    assert published.shown(best) == "34.5 [S]"
