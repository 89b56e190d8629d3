"""How a topology file becomes a ``Topology``: text -> YAML nodes -> typed sections -> frozen values.

``document`` composes YAML within limits, ``kinds`` reads one value or section and describes it as JSON Schema,
``fileformat`` is the one table of keys that drives both, with ``linkformat`` for those of a link.  ``directions`` says
what these do to a direction, ``recordings`` reads the trace files that they name.  ``build`` and ``links`` check what
only the whole file shows, and ``problems`` words all mistakes at once.  ``testbed.load`` puts them together;
``changes`` reads the same keys for a link that is up.
"""
