"""The network: topologies, the sandboxes and shaped links that emulate them, and what measures them."""
