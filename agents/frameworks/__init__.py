"""Routing frameworks, one file each: where expert copies go, and who computes what for each layer of each request."""
