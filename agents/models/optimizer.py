"""How the twins are trained: Muon for matrices, AdamW for the rest.

Muon (K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024) replaces the step of a matrix
by the nearest matrix whose singular values are all about 1, so that rare directions are learnt as fast as common ones:

    M <- b M + G,    U = G + b M                             Nesterov momentum                       (1)
    X_0 = U / |U|,   X_i+1 = a X + (c A + d A²) X, A = X Xᵀ  five Newton-Schulz steps                (2)
    W <- (1 - r w) W - r sqrt(max(1, columns / rows)) X_5    rate r, decay w                         (3)

torch's own Muon takes two-dimensional parameters only; here the experts of a layer are one parameter of three
dimensions, and matrices that stand side by side in one parameter are orthogonalised apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

#: Coefficients of (2), from the source.
A, C, D = 3.4445, -4.7750, 2.0315
ROUNDS = 5


def orthogonal(step: Tensor) -> Tensor:
    """Equation (2) for matrices (..., rows, columns)."""
    tall = step.shape[-2] > step.shape[-1]
    x: Tensor = step.mT if tall else step
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = A * x + (C * square + D * (square @ square)) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Equations (1) to (3).

    ``side_by_side`` says of a parameter how many matrices of equal width its columns hold.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        *,
        side_by_side: Mapping[nn.Parameter, int],
        rate: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": rate, "momentum": momentum, "weight_decay": weight_decay})
        self._side_by_side = side_by_side

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # nobody has a closure
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            rate, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(parameter)
                kept = state["momentum"].mul_(momentum).add_(parameter.grad)
                step = parameter.grad + momentum * kept
                parts = self._side_by_side.get(parameter, 1)
                rows, columns = step.shape[-2], step.shape[-1] // parts
                apart = step.reshape(*step.shape[:-1], parts, columns).movedim(-2, 0)  # (parts, ..., rows, columns)
                made = orthogonal(apart).movedim(0, -2).reshape(step.shape)
                parameter.mul_(1 - rate * decay).sub_(made, alpha=rate * max(1.0, columns / rows) ** 0.5)
