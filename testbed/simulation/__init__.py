"""A network in virtual time: no root, no packets, no waiting."""
