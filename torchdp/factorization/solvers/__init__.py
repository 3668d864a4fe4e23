"""Solvers that find factors; nothing here is trusted: see certificates. In the order to read:

- iteration: what they share: acceleration (Anderson 1965), when to stop, line searches (Kelley).
- spectrum: what one iteration needs of a weighted matrix, by decompositions or by products.
- fixed_point: gamma_(p)(W), with or without shift, by the dual of Edmonds, Nikolov, Ullman (2020),
  Lemma 12, and that of Nikolov, Tang (2023), Theorem 26.
- splitting: gamma_2(W; alpha), the norm within alpha, by the dual of Lemma 12.
- returning_solver: users of several epochs, or of steps that keep a gap; duality proved there.
- banded_solver: strategies of few bands, by linear programming's duality over what users may own.
- pivoting: the nearest histogram, exactly, by block pivots.
"""
