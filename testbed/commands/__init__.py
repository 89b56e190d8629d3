"""Subcommands of ``testbed`` that are long enough for a module of their own; ``testbed.cli`` registers them."""
