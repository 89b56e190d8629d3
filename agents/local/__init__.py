"""What one server's device runs next, and what its load channel reads next, for the passes of all requests."""
