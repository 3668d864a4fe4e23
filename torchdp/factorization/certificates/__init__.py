"""Certificates: proofs of bounds, independent of any solver. In the order to read:

- certificate: gamma_(p)(W) lies between a trace norm and what factors cost, by weak duality
  (Edmonds, Nikolov, Ullman 2020, Lemma 12; Nikolov, Tang 2023, Theorem 26; Kronecker products by
  Lemma 62).
- objective_certificate: the same for any convex objective (proof there), and for the norm within
  alpha.
- returning_certificate: for users of several epochs, or of steps that keep a gap.
- worst_sets: what such a user moves at most, exactly where the search ends.
- running_certificate: running sums that are never formed, by resistor networks and a quadrature.
"""
