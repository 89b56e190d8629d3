"""Files recorded from real networks, read into plain values: rates, delays and the shape of jitter.

``mahimahi`` reads chances to send, ``series`` reads ``time value`` lines and CSV columns, ``tables`` reads iproute2's
distributions.  A malformed file is refused with its name and line.  docs/traces.md is for people who have such files.
"""
