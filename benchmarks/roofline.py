"""How far the device model is from a real GPU: its roofline against measured times of operators.

    python benchmarks/roofline.py MEASURED.csv ... [--model NAME] [--peak "503.8 TFLOP/s"] [--memory "1792 GB/s"]

Reads tables as profilers of vLLM write them, told apart by their first line:

    tokens,activated_experts,time_us     the experts of a layer together: gate, experts, weighted sum
    layer,tokens,time_us                 operators of the dense part, one a line

and predicts each as a server of the testbed would be paced (``agents.frameworks.cost``): a launch, and the sum over the
experts of max(FLOPs / (efficiency x peak), weight bytes / memory bandwidth), tokens spread evenly; a projection as one
such kernel; ``dense part`` as the one kernel that the testbed makes of a layer's projections, norms and rotation.
Attention over the context has no table here and no time in the testbed.

Prints per range of tokens the median of (predicted - measured) / measured and the 90th percentile of its absolute
value: for the model as it is, for a launch paid by every expert of a batch, and for the constants that fit the experts'
table best.  The defaults of --peak and --memory are NVIDIA's figures for the
RTX PRO 6000 Blackwell Workstation Edition: dense FP16 with FP32 accumulation.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agents.frameworks.cost import call_s, dense_s, expert_s, roofline_s
from agents.models.profile import HALF_BYTES, ModelProfile
from testbed import units
from testbed.errors import TestbedError
from testbed.topology import Device

EXPERTS, DENSE = ("tokens", "activated_experts", "time_us"), ("layer", "tokens", "time_us")
MAX_ROWS = 1_000_000
RANGES = ((1, 8), (9, 64), (65, 256), (257, 1024), (1025, 4096))
#: How often an operator of the dense table runs in one layer.
PER_LAYER = {"layernorm": 2, "qkv_proj": 1, "qk_norm": 1, "rotary_emb": 1, "o_proj": 1}
COLUMNS = ("operator", "tokens", "n", "measured us", "model", "launch each", "fitted")

#: A device and a profile to seconds, for one measurement.
Prediction = Callable[[Device], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One line of a table, with the ways to predict it."""

    operator: str
    tokens: int
    time_s: float
    as_it_is: Prediction
    launch_each: Prediction


def read(path: Path, profile: ModelProfile) -> list[Measured]:
    """The measurements of a table; TestbedError naming file and line where it is none."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            header = tuple(next(rows, ()))
            if header not in (EXPERTS, DENSE):
                raise TestbedError(f"{path}:1: the first line must be {','.join(EXPERTS)} or {','.join(DENSE)}")
            lines = list(itertools.islice(rows, MAX_ROWS))
    except OSError as error:
        raise TestbedError(f"{path}: {error.strerror}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise TestbedError(f"{path}: not a table ({error})") from None
    try:
        if header == EXPERTS:
            return [_experts(profile, int(tokens), int(active), _seconds(us)) for tokens, active, us in lines]
        return _dense(profile, [(name, int(tokens), _seconds(us)) for name, tokens, us in lines])
    except ValueError as error:
        raise TestbedError(f"{path}: a line does not hold {', '.join(header)} ({error})") from None


def _seconds(microseconds: str) -> float:
    time_s = 1e-6 * float(microseconds)
    if not 0 < time_s < 1e3:
        raise ValueError(f"{microseconds} us is no time of an operator")
    return time_s


def _experts(profile: ModelProfile, tokens: int, active: int, time_s: float) -> Measured:
    assigned = tokens * profile.top_k
    if not 1 <= active <= min(profile.experts, assigned):
        raise ValueError(f"{tokens} tokens cannot use {active} experts of {profile.name}")
    rows = [assigned // active + (place < assigned % active) for place in range(active)]

    def as_it_is(device: Device) -> float:
        return device.launch_s + sum(call_s(device, profile, "full", count) for count in rows)

    def each(device: Device) -> float:
        return sum(expert_s(device, profile, "full", count) for count in rows)

    return Measured(operator=f"{active} experts", tokens=tokens, time_s=time_s, as_it_is=as_it_is, launch_each=each)


def _dense(profile: ModelProfile, lines: Sequence[tuple[str, int, float]]) -> list[Measured]:
    if profile.latent:
        raise TestbedError(f"{profile.name} has latent attention, whose operators are not {', '.join(PER_LAYER)}")
    head = profile.head_width or profile.hidden // profile.heads
    inner = profile.heads * head
    weights = {
        "qkv_proj": profile.hidden * (inner + 2 * (profile.kv_heads or profile.heads) * head),
        "o_proj": inner * profile.hidden,
    }
    found = [_kernel(name, tokens, time_s, weights[name]) for name, tokens, time_s in lines if name in weights]
    times = {(name, tokens): time_s for name, tokens, time_s in lines}
    for tokens in sorted({tokens for _, tokens, _ in lines}):
        if all((name, tokens) in times for name in PER_LAYER):
            together = sum(count * times[name, tokens] for name, count in PER_LAYER.items())
            found.append(_whole(profile, tokens, together))
    return found


def _kernel(name: str, tokens: int, time_s: float, weights: int) -> Measured:
    def predicted(device: Device) -> float:
        return roofline_s(device, flops=2.0 * weights * tokens, weight_bytes=HALF_BYTES * weights)

    return Measured(operator=name, tokens=tokens, time_s=time_s, as_it_is=predicted, launch_each=predicted)


def _whole(profile: ModelProfile, tokens: int, time_s: float) -> Measured:
    def predicted(device: Device) -> float:
        return dense_s(device, profile, tokens)

    return Measured(operator="dense part", tokens=tokens, time_s=time_s, as_it_is=predicted, launch_each=predicted)


def fitted(device: Device, measured: Sequence[Measured]) -> Device:
    """The device whose efficiency, memory bandwidth and launch bring the median absolute error lowest."""
    grid = itertools.product(
        np.arange(0.40, 0.81, 0.05), np.arange(0.60, 1.01, 0.05), (0.0, 5e-6, 10e-6, 15e-6, 20e-6, 25e-6, 30e-6)
    )
    devices = [
        replace(
            device,
            efficiency=float(efficiency),
            memory_bytes_per_s=float(share) * device.memory_bytes_per_s,
            launch_s=launch_s,
        )
        for efficiency, share, launch_s in grid
    ]
    return min(devices, key=lambda each: float(np.median(np.abs(errors(each, measured)))))


def errors(
    device: Device, measured: Iterable[Measured], *, launch_each: bool = False
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(predicted - measured) / measured of every line."""
    return np.array(
        [(each.launch_each if launch_each else each.as_it_is)(device) / each.time_s - 1 for each in measured]
    )


def table(device: Device, best: Device, measured: Sequence[Measured]) -> list[tuple[str, ...]]:
    """Per operator and range of tokens, and all together, the errors of the three predictions."""
    rows: list[tuple[str, ...]] = []
    groups = [(name, [each for each in measured if each.operator == name]) for name in _operators(measured)]
    experts = [each for each in measured if each.operator.endswith(" experts")]
    if experts:
        groups.insert(0, ("any experts", experts))
    for name, lines in groups:
        ranges = [(f"{low}-{high}", [x for x in lines if low <= x.tokens <= high]) for low, high in RANGES]
        for label, some in [*ranges, ("all", lines)]:
            if not some or (label != "all" and name.endswith(" experts") and name != "any experts"):
                continue
            middle = f"{1e6 * float(np.median([each.time_s for each in some])):.0f}"
            cells = (_cell(device, some), _cell(device, some, launch_each=True), _cell(best, some))
            rows.append((name, label, str(len(some)), middle, *cells))
    return rows


def _operators(measured: Iterable[Measured]) -> list[str]:
    return list(dict.fromkeys(each.operator for each in measured))


def _cell(device: Device, measured: Sequence[Measured], *, launch_each: bool = False) -> str:
    found = errors(device, measured, launch_each=launch_each)
    return f"{round(100 * np.median(found)):+d} % ({round(100 * np.percentile(np.abs(found), 90))} %)"


def main(arguments: list[str] | None = None) -> int:
    """Print the table and the constants that fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="MEASURED.csv")
    parser.add_argument("--model", default="qwen3-30b-a3b", help="whose operators were measured")
    parser.add_argument("--peak", default="503.8 TFLOP/s", help="dense FP16 peak of the GPU")
    parser.add_argument("--memory", default="1792 GB/s", help="its memory bandwidth")
    options = parser.parse_args(arguments)
    try:
        profile = ModelProfile.load(options.model)
        device = Device(
            peak_flops_per_s=units.flops_per_second(options.peak),
            memory_bytes_per_s=units.bytes_per_second(options.memory),
            fast_bytes=1,
            slow_bytes=1,
            load_bytes_per_s=1.0,
        )
        measured = [each for path in options.files for each in read(path, profile)]
    except (TestbedError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    experts = [each for each in measured if each.operator.endswith(" experts")]
    best = fitted(device, experts or measured)
    print(f"{profile.name}, {options.peak}, {options.memory}; median error (90th percentile of its absolute value)")
    rows = [COLUMNS, *table(device, best, measured)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    share = best.memory_bytes_per_s / device.memory_bytes_per_s
    print(
        f"model: efficiency {device.efficiency:g}, launch {1e6 * device.launch_s:g} us per batch; "
        f"fitted: efficiency {best.efficiency:.2f}, {100 * share:.0f} % of the memory bandwidth, "
        f"launch {1e6 * best.launch_s:g} us per batch"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
