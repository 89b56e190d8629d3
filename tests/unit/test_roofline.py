"""The benchmark that holds the device model against measured operators."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from agents.frameworks.cost import call_s, dense_s
from agents.models.profile import ModelProfile
from testbed.topology import Device

ROOFLINE = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "roofline.py"))
QWEN = ModelProfile.load("qwen3-30b-a3b")
DEVICE = Device(peak_flops_per_s=503.8e12, memory_bytes_per_s=1792e9, fast_bytes=1, slow_bytes=1, load_bytes_per_s=1.0)


def printed(capsys: pytest.CaptureFixture[str], path: Path) -> dict[tuple[str, str], str]:
    assert ROOFLINE["main"]([str(path)]) == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return {(row[0], row[1]): row[4] for row in cells if len(row) == 7}


def test_experts_that_take_what_the_model_says_have_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "experts.csv"
    lines = [f"{n},16,{1e6 * (DEVICE.launch_s + 16 * call_s(DEVICE, QWEN, 'full', n // 2))}" for n in (4, 400, 4000)]
    path.write_text("\n".join(["tokens,activated_experts,time_us", *lines]))

    found = printed(capsys, path)

    assert {found["any experts", each] for each in ("1-8", "257-1024", "all")} == {"+0 % (0 %)"}


def test_operators_of_twice_the_speed_are_predicted_twice_as_long(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dense.csv"
    share = 1e6 * dense_s(DEVICE, QWEN, 64) / 2 / 6  # of six launches: one operator runs twice in a layer
    names = ("layernorm", "qkv_proj", "qk_norm", "rotary_emb", "o_proj", "embedding")
    path.write_text("\n".join(["layer,tokens,time_us", *(f"{name},64,{share}" for name in names)]))

    assert printed(capsys, path)["dense part", "9-64"] == "+100 % (100 %)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ":1: the first line must be tokens,activated_experts,time_us or layer,tokens,time_us"),
        ("tokens,activated_experts,time_us\n1,129,5", "1 tokens cannot use 129 experts"),
        ("tokens,activated_experts,time_us\n1,8", "not enough values"),
        ("layer,tokens,time_us\no_proj,1,nan", "nan us is no time of an operator"),
    ],
)
def test_what_is_no_table_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text)

    assert ROOFLINE["main"]([str(path)]) == 2
    assert expected in capsys.readouterr().err
