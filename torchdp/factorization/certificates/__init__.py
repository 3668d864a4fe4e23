"""Certificates: proofs of bounds, independent of any solver."""
