"""Solvers that find factors; nothing here is trusted: see certificates."""
