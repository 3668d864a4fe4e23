"""Categorical data (finite types): frequency oracles and optimised strategies."""
