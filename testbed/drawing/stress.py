r"""Points in the plane whose distances come close to given ones, and then keep clear of each other.

Stress majorization (Gansner, Koren, North 2004; SMACOF, de Leeuw 1977):

    stress(X) = Σ_{i<j} w_ij (|x_i - x_j| - d_ij)²      w_ij = d_ij⁻²                                               (1)
    X'        = L_w⁺ L_X X                               each step lowers (1)                                       (2)

    L_w   Laplacian of the weights w_ij
    L_X   Laplacian of w_ij d_ij / |x_i - x_j|

It starts from the two principal coordinates of the distances (classical scaling), and from a circle, and keeps the
better end.  Nothing is drawn by chance.

>>> line = embedded(np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [2.0, 1.0, 0.0]]))
>>> print(np.round(np.abs(line), 3) + 0.0)
[[1. 0.]
 [0. 0.]
 [1. 0.]]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]  # (points, 2)
Matrix = NDArray[np.float64]

_STEPS = 300
_CLOSE = 1e-4 / 4  # relative gain of a step below which there is no more to gain
_PUSHES = 400
_TINY = 1e-9


def shortest(lengths: Matrix) -> Matrix:
    """Lengths of the shortest ways, where infinity is no edge (Floyd, Warshall); pieces stand apart."""
    ways = lengths.copy()
    np.fill_diagonal(ways, 0.0)
    for k in range(len(ways)):
        np.minimum(ways, ways[:, k, None] + ways[None, k, :], out=ways)
    finite = ways[np.isfinite(ways)]
    ways[~np.isfinite(ways)] = max(float(finite.max(initial=0.0)), 1.0) * 1.2
    return ways


def embedded(distances: Matrix) -> Points:
    """Points with about these distances, the longer side of the whole lying flat."""
    count = len(distances)
    if count < 3:
        return np.array([[index * distances[0, -1], 0.0] for index in range(count)]).reshape(count, 2)
    turns = 2 * np.pi * np.arange(count) / count
    circle = np.column_stack([np.cos(turns), np.sin(turns)]) * distances.max() / 2
    principal = _principal(distances)
    # A trace of the circle tells points apart that principal coordinates put in one place.
    beside = _distances(principal) + np.where(np.eye(count), np.inf, 0.0)
    principal += np.where(beside.min(axis=1) < 0.01 * distances.max(), 0.05, 0.0)[:, None] * circle
    found = [_majorized(start, distances) for start in (principal, circle)]
    return flat(min(found, key=lambda points: _stress(points, distances)))


def flat(points: Points) -> Points:
    """The points turned about their middle so that their longer extent is horizontal, the first one left and above."""
    centred: Points = points - points.mean(axis=0)
    if len(points) < 2:
        return centred
    _, axes = np.linalg.eigh(centred.T @ centred)
    turned = centred @ axes[:, ::-1]
    signs = np.where(turned[0] * np.array([-1.0, 1.0]) < 0, -1.0, 1.0)
    result: Points = turned * signs
    return result


def pushed_apart(points: Points, radii: NDArray[np.float64]) -> Points:
    """The points moved as little as it takes until the discs around them do not meet."""
    moved = points.copy()
    need = radii[:, None] + radii[None, :]
    np.fill_diagonal(need, 0.0)
    order = np.arange(len(points), dtype=np.float64)
    for _ in range(_PUSHES if len(points) > 1 else 0):
        distance = _distances(moved)
        missing = np.maximum(need - distance, 0.0)
        if missing.max() < 1e-3:
            break
        apart = moved[:, None, :] - moved[None, :, :]
        # Of two points in one place, the later one goes right.
        apart[..., 0] += np.where(distance < _TINY, _TINY * (order[:, None] - order[None, :]), 0.0)
        unit = apart / np.hypot(apart[..., 0], apart[..., 1]).clip(_TINY)[..., None]
        moved += 0.4 * (unit * missing[..., None]).sum(axis=1)
    return moved


def _principal(distances: Matrix) -> Points:
    squares = distances**2
    middle = squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean()
    values, vectors = np.linalg.eigh(-middle / 2)
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(values))])
    coordinates: Points = (vectors * signs)[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 0.0))
    return coordinates


def _majorized(start: Points, distances: Matrix) -> Points:
    count = len(start)
    weights = np.where(distances > _TINY, 1.0 / np.maximum(distances, _TINY) ** 2, 0.0)
    # The inverse of the Laplacian where it has one; points are centred, so its null space does not matter.
    inverse = np.linalg.inv(_laplacian(weights) + 1.0 / count)
    points: Points = start - start.mean(axis=0)
    before = np.inf
    for _ in range(_STEPS):
        lengths = _distances(points)
        now = _stress_of(lengths, distances)
        if before - now < _CLOSE * before:
            break
        before = now
        points = inverse @ (_laplacian(weights * distances / lengths.clip(_TINY)) @ points)  # (2)
    return points


def _stress(points: Points, distances: Matrix) -> float:
    return _stress_of(_distances(points), distances)


def _stress_of(lengths: Matrix, distances: Matrix) -> float:
    wanted = np.maximum(distances, _TINY)
    return float(np.square(np.where(distances > _TINY, lengths / wanted - 1, 0.0)).sum() / 2)  # (1)


def _distances(points: Points) -> Matrix:
    # Of the coordinates apart: several times faster than of their differences as an array of pairs.
    across, up = (axis[:, None] - axis[None, :] for axis in points.T)
    result: Matrix = np.sqrt(across * across + up * up)
    return result


def _laplacian(weights: Matrix) -> Matrix:
    negative = -weights
    np.fill_diagonal(negative, 0.0)
    np.fill_diagonal(negative, -negative.sum(axis=1))
    return negative
