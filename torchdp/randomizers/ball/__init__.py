"""Vectors of the unit ball: each user sends one, unbiased."""
