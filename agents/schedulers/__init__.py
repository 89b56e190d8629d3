"""What one machine that cannot hold its experts runs next, and what it loads next: one file per scheduler."""
