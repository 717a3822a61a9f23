"""The clock of what torch runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def torch_seconds(call: Callable[[], Any], device: str) -> float:
    """Seconds of a call, on the device's own clock where it has one."""
    if device == "cpu":
        began = time.perf_counter()
        call()
        return time.perf_counter() - began
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3
