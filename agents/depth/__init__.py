"""How deep a token goes: decisions that skip, substitute or end work, on top of any routing framework."""
