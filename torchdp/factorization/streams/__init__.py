"""Streaming strategies: noise made step by step, its sensitivity, and searches for the best.

In the order of reading: ``recurrence`` (the tables that make the noise; C and its rounding by
Higham 2002, Theorem 8.10), ``strategy`` (sensitivity of Toeplitz strategies, by Kalinin, Lampert
2024, Theorem 2), ``series`` (sums over C = D1 T D2 in linear time), ``buffered`` (strategies of a
few buffers, with or without noise that is drawn again) and ``search`` (L-BFGS, with lower bounds
that hold for every strategy).
"""
