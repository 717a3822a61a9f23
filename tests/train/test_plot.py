"""The picture of a run."""

from __future__ import annotations

import pytest

from specdiff_jax.train.plot import plot_loss


@pytest.mark.parametrize("validation", [{}, {"validation_loss": None}, {"validation_loss": 2.0}])
def test_a_png_is_written(tmp_path, validation):
    image = pytest.importorskip("matplotlib.image")
    rows = [{"step": step, "loss": 3.0 / step, **validation} for step in (1.0, 2.0, 3.0)]
    plot_loss(rows, tmp_path / "loss.png")
    pixels = image.imread(tmp_path / "loss.png")
    assert pixels.shape[:2] == (600, 1050)
    assert pixels[..., :3].std() > 0.05


@pytest.mark.parametrize("tau", [None, 2.5])
def test_acceptance_lengths_get_axes_of_their_own(tmp_path, tau):
    image = pytest.importorskip("matplotlib.image")
    rows = [{"step": step, "loss": 3.0 / step, "acceptance": step, "tau": tau} for step in (1.0, 2.0, 3.0)]
    plot_loss(rows, tmp_path / "loss.png")
    pixels = image.imread(tmp_path / "loss.png")
    assert pixels.shape[:2] == (600, 1800)
    assert pixels[:, 900:, :3].std() > 0.05
