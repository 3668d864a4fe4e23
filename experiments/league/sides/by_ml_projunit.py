"""ml-projunit (Asi, Feldman, Talwar 2022), from a checkout: PrivUnitG, its constants computed once."""

import PrivUnitAlgs as peer
import side


def vectors(n, d, epsilon):
    x = side.spheres(n, d)
    p = peer.priv_unit_G_get_p(epsilon)
    gamma, sigma = peer.get_gamma_sigma(p, epsilon)
    return lambda: sum(peer.PrivUnitG(each, epsilon, p, gamma, sigma) for each in x) / n


if __name__ == "__main__":
    side.main("", {"PrivUnit": vectors}, version="2023-06")
