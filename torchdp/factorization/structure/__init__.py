"""Factorizations that follow from a matrix's structure: products, blocks, groups, and those of the literature."""
