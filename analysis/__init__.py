"""Reads result directories and turns them into figures, tables and one report.

Data flows one way: ``load`` -> ``metrics`` (with ``bootstrap`` and ``events``) -> ``figures``, ``maps``, ``tables``,
``findings`` -> ``report``.  Nothing here runs an experiment or knows how one is run; ``docs/results.md`` is the
whole interface.
"""
