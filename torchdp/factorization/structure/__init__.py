"""Factorizations that exploit a matrix's structure: products, blocks, groups, and known ones of the literature."""
