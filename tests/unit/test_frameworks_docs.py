"""The page on frameworks keeps up with the registry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agents.frameworks.registry import ABLATIONS, BLIND_TO_BUDGET, FRAMEWORKS, create

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "frameworks.md").read_text()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_page_has_a_row_for_every_framework(name: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]

    assert any(f"`{name}`" in row.split("|")[1] for row in rows)


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_page_names_every_ablation_and_it_can_be_made(name: str) -> None:
    assert f"`{name}`" in PAGE or f"`{name.removeprefix('hetroute')}`" in PAGE
    assert create(name).name == name
    assert create(f"{name}+skip-only").name == f"{name}+skip-only"


def test_files_that_the_page_links_to_exist() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", PAGE)

    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_rows_that_cannot_heed_the_budget_are_those_named_after_a_precision() -> None:
    """``hetroute-int8`` may use int8, and keeps a full-precision copy of everything."""
    assert {name for name in FRAMEWORKS if name.endswith(("-int8", "-int4"))} - BLIND_TO_BUDGET == {"hetroute-int8"}
