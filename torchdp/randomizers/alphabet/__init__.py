"""Finite types: frequency oracles and optimised strategies."""
