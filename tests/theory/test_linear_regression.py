"""Delayed gradient descent on a regression: the vectorised run against a loop, the measured edge against Lemma 1."""

from __future__ import annotations

import numpy as np
import pytest

from pipemare_exp.data import cpusmall
from pipemare_exp.errors import UserError
from pipemare_exp.theory import linear_regression as lr
from pipemare_exp.theory.quadratic import lemma_1


@pytest.fixture(scope="module")
def data():
    return cpusmall.load()


def test_final_losses_equal_a_plain_loop(data):
    alphas, delays, steps = [0.001, 0.02, 0.3], [0, 3, 7], 50
    found = lr.final_losses(data, alphas, delays, steps)
    x, y = data.features, data.target
    for row, tau in enumerate(delays):
        for column, alpha in enumerate(alphas):
            past = [np.zeros(x.shape[1])]
            for t in range(steps):
                old = past[max(t - tau, 0)]
                past.append(past[-1] - alpha * x.T @ (x @ old - y) / len(y))
            expected = 0.5 * np.mean((x @ past[-1] - y) ** 2)
            assert found[row, column] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("tau", [0, 1, 4, 12, 30])
def test_measured_edge_follows_lemma_1_within_5_percent(data, tau):
    expected = lemma_1(tau, np.linalg.eigvalsh(data.features.T @ data.features / len(data.target)).max())
    found = lr.measured_edge(data, tau, 1e-3, 1.0)
    assert found == pytest.approx(expected, rel=0.05)


def test_an_edge_outside_the_range_is_refused(data):
    with pytest.raises(ValueError, match="no edge between"):
        lr.measured_edge(data, 2, 1e-4, 1e-3)
    with pytest.raises(ValueError, match="no edge between"):
        lr.measured_edge(data, 2, 1.0, 2.0)


def test_overflow_is_infinite_not_nan(data):
    assert lr.final_losses(data, [50.0], [5], 3000)[0, 0] == np.inf


def test_bundled_data_are_standardised(data):
    assert data.name == "diabetes"
    assert data.features.shape == (442, 10)
    np.testing.assert_allclose(data.features.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(data.features.std(axis=0), 1)
    assert data.largest_curvature() == pytest.approx(np.linalg.norm(data.features, 2) ** 2 / 442)


LINES = "90 1:1 2:6 12:3.5\n82 1:2 3:-1\n\n71 2:4 12:1\n"


def test_libsvm_lines_are_read(tmp_path):
    path = tmp_path / "cpusmall"
    path.write_text(LINES)
    features, target = cpusmall.read_libsvm(path)
    assert features.shape == (3, 12)
    assert target.tolist() == [90, 82, 71]
    assert features[0, [0, 1, 11]].tolist() == [1, 6, 3.5]
    assert features[1, 2] == -1
    assert features.sum() == pytest.approx(1 + 6 + 3.5 + 2 - 1 + 4 + 1)


@pytest.mark.parametrize("line", ["90 0:1", "90 13:1", "90 1", "<html>", "90 1:x"])
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "cpusmall"
    path.write_text(LINES + line + "\n")
    with pytest.raises(UserError, match="line 5"):
        cpusmall.read_libsvm(path)


def test_downloaded_data_are_used_and_their_checksum_kept(tmp_path):
    source = tmp_path / "served"
    source.write_text(LINES)
    root = tmp_path / "data"
    path = cpusmall.prepare_cpusmall(root, source.as_uri())
    assert path.read_text() == LINES
    loaded = cpusmall.load(root)
    assert loaded.name == "cpusmall"
    # of the twelve columns only 1, 2, 3 and 12 are not constant
    assert loaded.features.shape == (3, 4)
    path.write_text(LINES.replace("90", "91"))
    with pytest.raises(UserError, match="has changed since its first use"):
        cpusmall.load(root)


def test_a_failed_download_says_where_to_put_the_file(tmp_path):
    with pytest.raises(UserError, match=r"put it at .*cpusmall"):
        cpusmall.prepare_cpusmall(tmp_path, (tmp_path / "absent").as_uri())
    assert not list(tmp_path.iterdir())
