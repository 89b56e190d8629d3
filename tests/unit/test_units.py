"""Quantities: what people may write, what is refused, and that printed values read back."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed import units
from testbed.units import UnitError

POSITIVE = st.floats(min_value=1e-9, max_value=1e15, allow_nan=False)


def refusal(parse: Callable[[str], float], text: str) -> str:
    with pytest.raises(UnitError) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.seconds, "20 ms", 0.02),
        (units.seconds, "20ms", 0.02),
        (units.seconds, "  0.3 ms ", 0.0003),
        (units.seconds, "2.5e2 us", 0.00025),
        (units.seconds, "7 µs", 7e-6),
        (units.seconds, "2 min", 120.0),
        (units.bits_per_second, "1.5 Gbit/s", 1.5e9),
        (units.bits_per_second, "100 MB/s", 8e8),
        (units.bits_per_second, "1 KiB/s", 8192.0),
        (units.size_bytes, "64 KiB", 65536),
        (units.size_bytes, "24 GB", 24_000_000_000),
        (units.size_bytes, "1.5 kB", 1500),
        (units.bytes_per_second, "936 GB/s", 9.36e11),
        (units.bytes_per_second, "8 Gbit/s", 1e9),
        (units.flops_per_second, "71 TFLOP/s", 7.1e13),
        (units.flops_per_second, "71 TFLOPS", 7.1e13),
        (units.fraction, "2 %", 0.02),
        (units.fraction, "0.02", 0.02),
    ],
)
def test_a_quantity_is_read_exactly(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "readings"),
    [
        (units.bits_per_second, "100 mbps", ["100 Mbit/s", "100 MB/s"]),
        (units.bits_per_second, "100Mbps", ["100 Mbit/s", "100 MB/s"]),
        (units.bits_per_second, "1 Gb/s", ["1 Gbit/s", "1 GB/s"]),
        (units.bits_per_second, "5 G", ["5 Gbit/s", "5 GB/s", "5 GiB/s"]),
        (units.seconds, "10m", ["10 ms", "10 min"]),
        (units.size_bytes, "64 KB", ["64 kB", "64 KiB"]),
        (units.size_bytes, "24 gb", ["24 GB", "24 GiB"]),
        (units.bytes_per_second, "24 gbps", ["24 Gbit/s", "24 GB/s"]),
    ],
)
def test_an_ambiguous_text_is_refused_with_all_its_readings(
    parse: Callable[[str], float], text: str, readings: list[str]
) -> None:
    message = refusal(parse, text)

    assert "ambiguous" in message
    assert [reading for reading in readings if f"'{reading}'" not in message] == []
    assert message.count("'") == 2 * (len(readings) + 1)
    for reading in readings:
        parse(reading)


@pytest.mark.parametrize("parse", [units.seconds, units.bits_per_second, units.size_bytes, units.flops_per_second])
def test_a_bare_number_is_refused_with_what_to_write(parse: Callable[[str], float]) -> None:
    message = refusal(parse, "10")

    assert message.startswith("'10' has no unit: write '10 ")


def test_nothing_needs_no_unit() -> None:
    assert units.seconds("0") == 0.0
    assert units.size_bytes("0") == 0


@pytest.mark.parametrize(
    ("parse", "text", "suggestion"),
    [
        (units.bits_per_second, "10 gbit/s", "10 Gbit/s"),
        (units.bits_per_second, "1 Mbit", "1 Mbit/s"),
        (units.seconds, "10 sec", "10 s"),
        (units.seconds, "10 MS", "10 ms"),
        (units.size_bytes, "24 GB/s", "24 GB"),
        (units.bytes_per_second, "24 GB", "24 GB/s"),
        (units.flops_per_second, "71 T", "71 TFLOP/s"),
        (units.fraction, "2 percent", "2 %"),
    ],
)
def test_a_near_miss_is_refused_with_the_right_unit(parse: Callable[[str], float], text: str, suggestion: str) -> None:
    assert refusal(parse, text).endswith(f"did you mean '{suggestion}'?")


@pytest.mark.parametrize(
    "text", ["", "fast", "nan ms", "inf ms", "1/2 ms", "1 2 ms", "١ ms", "ms", "1e999 ms", "9" * 50]
)
def test_what_is_no_number_with_a_unit_is_refused(text: str) -> None:
    refusal(units.seconds, text)


def test_a_negative_quantity_a_comma_and_a_part_of_a_byte_are_refused_with_the_reason() -> None:
    assert "is negative" in refusal(units.seconds, "-5 ms")
    assert "decimal point" in refusal(units.bits_per_second, "1,5 Gbit/s")
    assert "whole number of bytes" in refusal(units.size_bytes, "1.5 B")


@pytest.mark.parametrize(
    ("parse", "show"),
    [
        (units.seconds, units.format_seconds),
        (units.bits_per_second, units.format_rate),
        (units.bytes_per_second, units.format_bandwidth),
        (units.flops_per_second, units.format_flops),
        (units.fraction, units.format_fraction),
    ],
)
@given(value=POSITIVE)
def test_a_printed_value_reads_back_to_six_digits(
    parse: Callable[[str], float], show: Callable[[float], str], value: float
) -> None:
    assert parse(show(value)) == pytest.approx(value, rel=5e-6)


@given(value=st.integers(min_value=0, max_value=10**15))
@example(65536)
@example(24 * 10**9)
def test_a_printed_size_reads_back_to_six_digits(value: int) -> None:
    # A rounded size may end in a part of a byte, which only the exact parser takes.
    assert float(units.SIZE.parse(units.format_size(value))) == pytest.approx(value, rel=5e-6)


def test_values_are_printed_in_the_unit_that_reads_best() -> None:
    assert units.format_seconds(0.0003) == "300 us"
    assert units.format_seconds(0.0) == "0 s"
    assert units.format_rate(8e8) == "800 Mbit/s"
    assert units.format_size(256 * 1024) == "256 KiB"
    assert units.format_size(2_500_000) == "2.5 MB"
    assert units.format_flops(1.2e14) == "120 TFLOP/s"


@given(text=st.text(max_size=60))
def test_any_text_is_either_a_quantity_or_refused_in_one_line(text: str) -> None:
    for parse in (units.seconds, units.bits_per_second, units.size_bytes, units.flops_per_second, units.fraction):
        refused = ""
        try:
            assert parse(text) >= 0
        except UnitError as error:
            refused = str(error)
        assert len(refused.splitlines()) <= 1


def test_the_examples_of_the_module_hold() -> None:
    assert doctest.testmod(units).failed == 0
