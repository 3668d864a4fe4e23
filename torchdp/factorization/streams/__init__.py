"""Streaming strategies: each step's noise, the sensitivity to one user, and the best strategies of
few buffers.
"""
