"""How a topology file becomes a ``Topology``: text -> YAML nodes -> typed sections -> frozen values.

``document`` composes YAML within limits, ``kinds`` reads one value or section and describes it as JSON Schema,
``fileformat`` is the one table of keys that drives both, ``build`` checks what only the whole file shows, and
``problems`` words all mistakes at once.  ``testbed.load`` puts them together.
"""
