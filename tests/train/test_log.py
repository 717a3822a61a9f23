"""The CSV log and what shows it."""

from __future__ import annotations

from specdiff_jax.train.log import TrainingLog, read_log
from specdiff_jax.train.progress import TrainingProgress


def write(path, steps, lines=0):
    log = TrainingLog(path, lines)
    for step in steps:
        log.append({"step": step, "loss": step / 3, "validation_loss": None}, tokens=100, seconds=0.5)


def test_lines_come_back(tmp_path):
    path = tmp_path / "log.csv"
    write(path, (2, 4))
    assert path.read_text().splitlines()[0] == "step,loss,validation_loss,tokens_per_second,seconds"
    assert read_log(path) == [
        {"step": 2, "loss": 2 / 3, "validation_loss": None, "tokens_per_second": 200.0, "seconds": 0.5},
        {"step": 4, "loss": 4 / 3, "validation_loss": None, "tokens_per_second": 200.0, "seconds": 1.0},
    ]


def test_a_resumed_log_is_cut_and_goes_on(tmp_path):
    path, whole = tmp_path / "log.csv", tmp_path / "whole.csv"
    write(whole, (2, 4, 6, 8))
    write(path, (2, 4, 6))
    with path.open("a") as file:
        file.write("8,2.6")  # the line that a kill cut
    write(path, (6, 8), lines=2)
    assert path.read_bytes() == whole.read_bytes()


def test_a_log_without_a_checkpoint_begins_again(tmp_path):
    path, whole = tmp_path / "log.csv", tmp_path / "whole.csv"
    write(whole, (2,))
    path.write_text("step,lo")  # killed in the first line
    write(path, (2,), lines=0)
    assert path.read_bytes() == whole.read_bytes()


def test_progress_off_a_terminal_is_lines_on_stderr(capsys):
    with TrainingProgress(0, 400) as progress:
        progress.update(100, 1.5, 2000.0)
        progress.update(200, 1.25, 2000.0)  # too soon for a line
        progress.update(400, 1.0, 3000.0)
    captured = capsys.readouterr()
    assert captured.out == ""
    first, last = captured.err.splitlines()
    assert first.startswith("step 100/400  loss 1.5000  2,000 tokens/s")
    assert last.startswith("step 400/400  loss 1.0000  3,000 tokens/s  0 s left")
