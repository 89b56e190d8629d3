"""Scenarios: seeded timelines of requests and of link changes.  Importing one runs nothing."""
