"""Factorization norms with certificates.

Notation (W is m x n: queries x types; a column is what one user holds):

| API name | symbol | meaning | squared? |
|---|---|---|---|
| left | L, m x r | decoder | |
| right | R, r x n | what a type is mapped to | |
| shift | v, m | W - v 1^T = L R | |
| sensitivity | \\|\\|R\\|\\|_{1->2} | largest column norm of R | no |
| p = inf, `gamma2` | gamma_2(W) | largest row norm of L * largest column norm of R | no |
| p = 2 | sqrt(m) gamma_F(W) | Frobenius norm of L * largest column norm of R | no |
| `gamma_F` | gamma_F(W) | Edmonds, Nikolov and Ullman's, divided by sqrt(m): root mean squared error of a query | no |
| p | Gamma_p(+-w_1, ..., +-w_n) | Nikolov and Tang's norm of W's columns and their negatives, not divided | no |
| p, shift | Gamma_p(K) | Nikolov and Tang's norm of the set K of W's columns, not divided | no |
| error_weights | w | what an error in query i counts: norm of diag(w) W | no |
| `gamma2_dual` | gamma_2*(U) | largest <W, U> over gamma_2(W) <= 1 | no |
| row_weights | c | dual weights of the queries, norm 1 in l_{p/(p-2)} | |
| column_weights | P | dual weights of the types, a probability vector | |
| gap | | upper / lower - 1 | no |
"""

from torchdp.factorization.additive import additive_noise_bound, least_noise_variance
from torchdp.factorization.approximate import ApproximateFactorization, approximate, priced, zeta
from torchdp.factorization.blocks import factorize_blocks
from torchdp.factorization.certificates.approximate_certificate import certify_approximate, certify_zeta
from torchdp.factorization.certificates.certificate import Certificate, certify
from torchdp.factorization.certificates.epochs_certificate import certify_epochs
from torchdp.factorization.closed_forms import (
    box_axes,
    circulant,
    gamma_block_diagonal,
    gamma_box,
    gamma_circulant,
    gamma_ellipsoid,
    gamma_product_domain,
    gamma_sign,
    gamma_sign_triangular,
    gamma_skew_circulant,
    group_invariant,
    skew_circulant,
)
from torchdp.factorization.constant import FreeConstant, free_constant
from torchdp.factorization.constructive import (
    best_decoder,
    binary_tree,
    group_algebra,
    hadamard_strategy,
    identity_strategy,
    lipschitz_tree,
    normalised_square_root,
    square_root,
    workload_strategy,
)
from torchdp.factorization.dual import Gamma2Dual, certify_dual, gamma2_dual
from torchdp.factorization.epochs import EpochFactorization, factorize_epochs
from torchdp.factorization.factorize import Factorization, SignatureFactorization, factorize, signature_form
from torchdp.factorization.gradient import gradient, low_rank
from torchdp.factorization.hard import HardInstance, hard_instance, sample_upper_bound
from torchdp.factorization.layer import GramFactorization, gram_layer
from torchdp.factorization.least_error import LeastError, least_error
from torchdp.factorization.norm import gamma, gamma2, gamma_F, witness
from torchdp.factorization.product import ProductFactorization, factorize_product
from torchdp.factorization.rank import LowRankFactorization, jl_rank, johnson_lindenstrauss, measure, truncate
from torchdp.factorization.reference import reference
from torchdp.factorization.relaxation import LowRankRelaxation, Relaxation, SignatureRelaxation, smooth_log_norm

__all__ = [
    "ApproximateFactorization",
    "Certificate",
    "EpochFactorization",
    "Factorization",
    "FreeConstant",
    "Gamma2Dual",
    "GramFactorization",
    "HardInstance",
    "LeastError",
    "LowRankFactorization",
    "LowRankRelaxation",
    "ProductFactorization",
    "Relaxation",
    "SignatureFactorization",
    "SignatureRelaxation",
    "additive_noise_bound",
    "approximate",
    "best_decoder",
    "binary_tree",
    "box_axes",
    "certify",
    "certify_approximate",
    "certify_dual",
    "certify_epochs",
    "certify_zeta",
    "circulant",
    "factorize",
    "factorize_blocks",
    "factorize_epochs",
    "factorize_product",
    "free_constant",
    "gamma",
    "gamma2",
    "gamma2_dual",
    "gamma_F",
    "gamma_block_diagonal",
    "gamma_box",
    "gamma_circulant",
    "gamma_ellipsoid",
    "gamma_product_domain",
    "gamma_sign",
    "gamma_sign_triangular",
    "gamma_skew_circulant",
    "gradient",
    "gram_layer",
    "group_algebra",
    "group_invariant",
    "hadamard_strategy",
    "hard_instance",
    "identity_strategy",
    "jl_rank",
    "johnson_lindenstrauss",
    "least_error",
    "least_noise_variance",
    "lipschitz_tree",
    "low_rank",
    "measure",
    "normalised_square_root",
    "priced",
    "reference",
    "sample_upper_bound",
    "signature_form",
    "skew_circulant",
    "smooth_log_norm",
    "square_root",
    "truncate",
    "witness",
    "workload_strategy",
    "zeta",
]
