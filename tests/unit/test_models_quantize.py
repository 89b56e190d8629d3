"""Precisions: real integers, bounded error, fewer bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from agents.models.quantize import FORMATS, quantize, rounded
from testbed.errors import TestbedError

#: Weights are stored in half precision, so nothing smaller than 6e-8 occurs but zero.
MATRICES = arrays.arrays(np.float32, (64, 3), elements=st.floats(-8, 8, width=16))


@pytest.mark.parametrize("precision", FORMATS)
@given(matrix=MATRICES)
def test_no_weight_moves_by_more_than_half_a_step(precision: str, matrix: np.ndarray) -> None:
    found = quantize(matrix, precision)
    steps = np.repeat(found.scales, len(matrix) // len(found.scales), axis=0)

    assert np.all(np.abs(found.dequantize() - matrix) <= 0.5 * steps * (1 + 1e-4))
    assert np.abs(found.values).max() <= FORMATS[precision].levels


def test_int4_has_a_scale_per_group_of_32_so_one_outlier_spoils_only_its_group() -> None:
    matrix = np.full((64, 1), 0.7, np.float32)
    matrix[0] = 70.0

    found = rounded(matrix, "int4")

    np.testing.assert_allclose(found[32:], 0.7, rtol=1e-6)
    assert np.all(found[1:32] == 0)


def test_columns_have_their_own_scales() -> None:
    matrix = np.array([[1.0, 100.0], [0.5, 50.0]], np.float32)

    np.testing.assert_allclose(rounded(matrix, "int8"), matrix, rtol=0.01)


def test_full_precision_is_the_stored_weight_itself() -> None:
    matrix = np.ones((2, 2), np.float32)

    assert rounded(matrix, "full") is matrix


def test_fewer_bits_take_fewer_bytes() -> None:
    matrix = np.random.default_rng(0).standard_normal((64, 192)).astype(np.float32)

    assert quantize(matrix, "int8").stored_bytes == 64 * 192 + 2 * 192
    assert quantize(matrix, "int4").stored_bytes == 64 * 192 // 2 + 2 * 2 * 192


def test_a_row_count_that_groups_do_not_divide_is_refused() -> None:
    with pytest.raises(TestbedError, match="groups 32 inputs, which does not divide 40"):
        quantize(np.ones((40, 2), np.float32), "int4")
