"""Free variables where PyMC samples them."""

from typing import Any


def unconstrained(rv: Any, transform: Any) -> Any:
    """A random variable after its transform, which may depend on the variable's own parameters.

    Parameters
    ----------
    rv : TensorVariable
        Or a clone of it, with other parameters.
    transform : Transform or None
        ``model.rvs_to_transforms[rv]``.
    """
    return rv if transform is None else transform.forward(rv, *rv.owner.inputs)
