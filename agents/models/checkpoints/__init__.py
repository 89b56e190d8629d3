"""Published checkpoints of mixture-of-experts models in the place of a twin: ``load.py`` says how they come in."""
