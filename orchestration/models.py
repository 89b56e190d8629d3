"""Moved: see ``agents.models.model``."""

from agents.models.model import Model as Model
