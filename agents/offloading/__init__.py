"""One machine that cannot hold its experts: what it costs, what is asked of it, and the executor of schedulers."""
