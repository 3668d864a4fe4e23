"""Factorization norms with certificates.

Notation (W is m x n: queries x types; a column is what one user holds):

| API name | symbol | meaning | squared? |
|---|---|---|---|
| left | L, m x r | decoder | |
| right | R, r x n | what a type is mapped to | |
| shift | v, m | W - v 1^T = L R | |
| sensitivity | \\|\\|R\\|\\|_{1->2} | largest column norm of R | no |
| p = inf | gamma_2(W) | largest row norm of L * largest column norm of R | no |
| p = 2 | gamma_F(W) | Frobenius norm of L * largest column norm of R (ENU divide it by sqrt m) | no |
| p, shift | Gamma_p(K) | Nikolov and Tang's norm of the set K of W's columns | no |
| row_weights | c | dual weights of the queries, norm 1 in l_{p/(p-2)} | |
| column_weights | P | dual weights of the types, a probability vector | |
| gap | | upper / lower - 1 | no |
"""

from torchdp.factorization.certificate import Certificate, certify
from torchdp.factorization.constant import FreeConstant, free_constant
from torchdp.factorization.factorize import Factorization, SignatureFactorization, factorize, signature_form
from torchdp.factorization.gradient import gradient
from torchdp.factorization.norm import gamma, gamma2, witness
from torchdp.factorization.reference import reference

__all__ = [
    "Certificate",
    "Factorization",
    "FreeConstant",
    "SignatureFactorization",
    "certify",
    "factorize",
    "free_constant",
    "gamma",
    "gamma2",
    "gradient",
    "reference",
    "signature_form",
    "witness",
]
