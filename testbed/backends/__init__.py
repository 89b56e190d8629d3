"""Where the nodes of a topology live: namespaces now, containers and simulated hosts behind the same interface."""
