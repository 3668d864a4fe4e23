"""Factorizations W = L R of least error for queries W, each with a certified gap to the optimum.

    >>> from torchdp import workloads
    >>> from torchdp.factorization import factorize
    >>> found = factorize(workloads.prefix(64))
    >>> found.left.shape, found.right.shape, bool(found.certificate.gap <= 1e-3)
    (torch.Size([64, 64]), torch.Size([64, 64]), True)
    >>> round(float(found.certificate.upper), 2)  # gamma_2: what the worst query's error is proportional to
    2.11

| question | function |
|---|---|
| W exactly; a free shift | :func:`factorize`, :func:`signature_form` |
| any error, any structure, by descent: groups of columns, bands, signs, custom modules | :func:`train` |
| W within alpha, or at a price for the largest error | :func:`approximate`, :func:`zeta`, :func:`least_error` |
| prefix sums of millions of steps, matrix-free | :func:`factorize` of ``workloads.RunningSums`` |
| the same with a few buffers of memory (BLT) | :func:`factorize_buffered` |
| repeated participation: by epoch; with a minimum separation | :func:`factorize_epochs`; :func:`factorize_separated` |
| streaming: noise step by step, custom strategies too | :class:`StreamStrategy`, :class:`Recurrence` |
| fewer rows of R | :func:`truncate`, :func:`johnson_lindenstrauss` |
| the norm as a loss; factors as parameters | :func:`gamma2`, :func:`gamma_F`; :class:`Relaxation` |
| marginal tables of a thousand bits | :class:`MarginalFactorization` |
| products, matrix-free; those of the literature | :func:`factorize_product`; :func:`square_root`, ``constructive`` |
| lower bounds on users; on noise | :func:`hard_instance`, :func:`learner_samples`; :func:`additive_noise_bound` |

In the order of reading: ``certificates`` (weak duality; they check everything below and share no
code with the ``solvers``), ``factorize`` (and :func:`reference`, a semidefinite program),
``running`` (Nikolov, Tang 2023, Theorem 26, for weights alone), ``product`` (their Lemma 62),
``norm`` (Edmonds, Nikolov, Ullman 2020, Lemmas 12 and 13), ``relaxation`` and ``train`` (every local
minimum in T is global), ``approximate`` (Ghazi et al. 2023, Lemma 12), ``epochs`` and ``streams``
(sensitivity of several steps), ``constructive`` (closed forms), ``hard`` (lower bounds).

Guarantees: every certificate's lower <= the least value of any factorization <= its upper, in
float64 up to its ``rounding``, by weak duality (Edmonds, Nikolov, Ullman 2020, Lemma 12; Nikolov,
Tang 2023, Theorem 26).

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
| `gamma2_dual` | gamma_2*(U) | largest <W, U> over gamma_2(W) <= 1 | no |
| row_weights | c | dual weights of the queries, norm 1 in l_{p/(p-2)} | |
| column_weights | P | dual weights of the types, a probability vector | |
| gap | | upper / lower - 1 | no |
"""

from torchdp.factorization.approximate import (
    approximate,
    jl_rank,
    johnson_lindenstrauss,
    least_error,
    truncate,
    zeta,
)
from torchdp.factorization.certificates.certificate import Certificate, certify
from torchdp.factorization.constructive import (
    MarginalFactorization,
    gamma_box,
    gamma_ellipsoid,
    lipschitz_tree,
    square_root,
)
from torchdp.factorization.epochs import factorize_epochs, factorize_separated
from torchdp.factorization.factorize import Factorization, factorize, reference
from torchdp.factorization.hard import additive_noise_bound, hard_instance, learner_samples
from torchdp.factorization.norm import free_constant, gamma, gamma2, gamma2_dual, gamma_F
from torchdp.factorization.product import factorize_product, signature_form
from torchdp.factorization.relaxation import (
    Groups,
    Norm,
    Objective,
    Product,
    Relaxation,
    smooth_log_norm,
    strategy,
)
from torchdp.factorization.streams.buffered import BufferedStrategy, RecalledStrategy
from torchdp.factorization.streams.recurrence import Recurrence
from torchdp.factorization.streams.search import factorize_buffered
from torchdp.factorization.streams.strategy import BandedStrategy, StreamStrategy
from torchdp.factorization.train import train

__all__ = [
    "BandedStrategy",
    "BufferedStrategy",
    "Certificate",
    "Factorization",
    "Groups",
    "MarginalFactorization",
    "Norm",
    "Objective",
    "Product",
    "RecalledStrategy",
    "Recurrence",
    "Relaxation",
    "StreamStrategy",
    "additive_noise_bound",
    "approximate",
    "certify",
    "factorize",
    "factorize_buffered",
    "factorize_epochs",
    "factorize_product",
    "factorize_separated",
    "free_constant",
    "gamma",
    "gamma2",
    "gamma2_dual",
    "gamma_F",
    "gamma_box",
    "gamma_ellipsoid",
    "hard_instance",
    "jl_rank",
    "johnson_lindenstrauss",
    "learner_samples",
    "least_error",
    "lipschitz_tree",
    "reference",
    "signature_form",
    "smooth_log_norm",
    "square_root",
    "strategy",
    "train",
    "truncate",
    "zeta",
]
