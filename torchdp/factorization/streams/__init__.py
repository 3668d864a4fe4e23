"""Strategies over steps: what each step's noise is made of, what one user moves, and the best of few buffers."""
