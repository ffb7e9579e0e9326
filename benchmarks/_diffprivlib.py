"""diffprivlib's regressions, for an interpreter that has it: asked by pickles on standard input."""

import pickle
import sys
import warnings

import numpy as np
from diffprivlib.models import LinearRegression, LogisticRegression


def coefficients(likelihood, X, y, settings):
    """Fitted once, with its own noise."""
    seed = settings.pop("seed")
    if likelihood == "bernoulli":
        model = LogisticRegression(
            data_norm=1.0, fit_intercept=False, tol=1e-8, max_iter=1000, random_state=seed,
            **settings,
        )  # fmt: skip
        return model.fit(X, y).coef_[0]
    model = LinearRegression(fit_intercept=True, random_state=seed, **settings).fit(X, y)
    return np.append(model.intercept_, model.coef_)


warnings.simplefilter("ignore")
while True:
    try:
        asked = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    pickle.dump(coefficients(*asked), sys.stdout.buffer)
    sys.stdout.buffer.flush()
