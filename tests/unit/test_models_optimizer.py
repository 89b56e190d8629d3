"""Muon steps are orthogonal matrices, each stored matrix apart."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agents.models.optimizer import Muon, orthogonal


@pytest.mark.parametrize("shape", [(8, 20), (20, 8), (3, 16, 24)])
def test_all_singular_values_come_out_about_one(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)

    values = torch.linalg.svdvals(orthogonal(torch.randn(*shape)))

    assert values.min() > 0.6
    assert values.max() < 1.3


def test_matrices_side_by_side_do_not_mix() -> None:
    torch.manual_seed(0)
    gradient = torch.randn(8, 16)
    gradient[:, 8:] *= 1000.0  # alone it would take the whole step
    weight = nn.Parameter(torch.zeros(8, 16))
    weight.grad = gradient

    Muon([weight], side_by_side={weight: 2}, rate=0.1).step()

    left, right = weight.detach().split(8, dim=1)
    assert left.norm() == pytest.approx(float(right.norm()), rel=0.2)
    assert left.norm() == pytest.approx(0.1 * 8**0.5, rel=0.2)


def test_weights_shrink_by_the_decay_and_parameters_without_gradient_stay() -> None:
    moved, still = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    moved.grad = torch.zeros(4, 4)

    Muon([moved, still], side_by_side={}, rate=0.5, weight_decay=0.1).step()

    assert torch.allclose(moved, torch.full((4, 4), 0.95))
    assert torch.equal(still, torch.ones(4, 4))
