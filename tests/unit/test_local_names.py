"""Composed names: who routes, who decides about depth, and what each server runs next."""

from __future__ import annotations

import pytest

from agents.errors import FrameworkError
from agents.frameworks.registry import Stack, create, create_depth, parts


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("hetroute", Stack("hetroute", None, None)),
        ("hetroute+bevy", Stack("hetroute", None, "bevy")),
        ("hetroute+trimmoe", Stack("hetroute", "trimmoe", None)),
        ("hetroute+trimmoe+bevy", Stack("hetroute", "trimmoe", "bevy")),
        ("hetroute+bevy+trimmoe", Stack("hetroute", "trimmoe", "bevy")),
        ("edgeshard+skip-layers:0.25+bevy", Stack("edgeshard", "skip-layers:0.25", "bevy")),
        ("trimmoe+bevy", Stack("trimmoe", "trimmoe", "bevy")),
        ("trimmoe+none+bevy", Stack("trimmoe", "none", "bevy")),
        ("mine.py+bevy", Stack("mine.py", None, "bevy")),
        ("a+b/mine.py", Stack("a+b/mine.py", None, None)),
    ],
)
def test_a_name_says_who_decides_what_in_either_order(name: str, stack: Stack) -> None:
    assert parts(name) == stack


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hetroute+bevi", "'bevi' is neither a depth policy nor a local scheduler; did you mean 'bevy'?"),
        ("hetroute+trimoe+bevy", "did you mean 'trimmoe'?"),
        ("hetroute+bevy+bevy", "has two local schedulers, 'bevy' and 'bevy'"),
        ("hetroute+calm+trimmoe", "has two depth policies, 'calm' and 'trimmoe'"),
        ("hetroute+lockstep", "known: none, trimmoe, skip-only"),
        ("hetroute+", "'' is neither"),
    ],
)
def test_a_part_that_is_unknown_or_doubled_is_named(name: str, said: str) -> None:
    with pytest.raises(FrameworkError) as caught:
        create(name)

    assert said in str(caught.value)


def test_a_composed_framework_is_the_routing_under_its_whole_name() -> None:
    framework = create("edgeshard+trimmoe+bevy")
    depth = create_depth("edgeshard+trimmoe+bevy")

    assert type(framework) is type(create("edgeshard"))
    assert framework.name == "edgeshard+trimmoe+bevy"
    assert depth is not None
    assert depth.name == "trimmoe"
    assert create_depth("edgeshard+bevy") is None
