r"""From coordinates to delays: the great circle, and light in fibre.

    h = sin²(Δφ/2) + cos φ_a · cos φ_b · sin²(Δλ/2)                        (1)
    d = 2 R · asin √h                                                      (2)
    t = d · ρ · τ                                                          (3)

    φ, λ  latitude and longitude, radians      R  mean radius of the earth, km      d  great circle, km
    ρ     route factor: how much longer than the great circle the cable runs (1 unless given)
    τ     delay of one km, s; light in fibre travels at about 2/3 c, which is 5.0035 us per km

>>> paris, london = Place(latitude_deg=48.85, longitude_deg=2.35), Place(latitude_deg=51.5, longitude_deg=-0.12)
>>> round(great_circle_km(paris, london)), round(1e3 * great_circle_km(paris, london) * FIBRE_S_PER_KM, 2)
(343, 1.72)
"""

from __future__ import annotations

import math

from testbed.importers.graph import Place

EARTH_RADIUS_KM = 6371.0
LIGHT_KM_PER_S = 299_792.458
FIBRE_S_PER_KM = 1 / (LIGHT_KM_PER_S * 2 / 3)
#: Coordinates of cities say no more than this.
ROUNDED_TO_S = 1e-6


def great_circle_km(a: Place, b: Place) -> float:
    """The shortest way over the globe, km."""
    phi_a, phi_b = math.radians(a.latitude_deg), math.radians(b.latitude_deg)
    half_phi, half_lambda = (phi_b - phi_a) / 2, math.radians(b.longitude_deg - a.longitude_deg) / 2
    h = math.sin(half_phi) ** 2 + math.cos(phi_a) * math.cos(phi_b) * math.sin(half_lambda) ** 2  # (1)
    return 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(min(1.0, h)))  # (2)


def delay_s(a: Place, b: Place, *, per_km_s: float, route_factor: float) -> float:
    """One-way delay of a cable between two places, in whole microseconds."""
    exact_s = great_circle_km(a, b) * route_factor * per_km_s  # (3)
    return round(exact_s / ROUNDED_TO_S) / 1_000_000
