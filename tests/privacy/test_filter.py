"""A privacy filter never gives out more than was put in."""

import copy
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_dp.exceptions import PrivacyBudgetExceeded
from pymc_dp.privacy.accounting import gaussian_mu
from pymc_dp.privacy.events import Gaussian
from pymc_dp.privacy.filter import PrivacyFilter
from pymc_dp.privacy.plans import Permit

Z = 3.0


def privacy_filter(z=Z):
    return PrivacyFilter(Permit(0, 0, (Gaussian(z),)), z)


@given(st.lists(st.tuples(st.floats(1e-4, 0.9), st.integers(1, 5)), max_size=30))
def test_parts_compose_to_the_whole_at_most(requests):
    money, paid = privacy_filter(), []
    for share, count in requests:
        try:
            z, permit = money.permit(share, count)
        except PrivacyBudgetExceeded:
            continue
        assert permit.events == (Gaussian(z, count),)
        paid += permit.events
    assert gaussian_mu(paid) <= 1 / Z
    assert money.spent <= 1 + 1e-8


def test_all_of_it_can_be_spent():
    money = privacy_filter()
    events = [event for _ in range(4) for event in money.permit(0.25)[1].events]
    assert gaussian_mu(events) == pytest.approx(1 / Z, rel=1e-6)
    for share in (1e-3, 0.5, 0.0, -0.1, np.nan):
        with pytest.raises(PrivacyBudgetExceeded):
            money.permit(share)


def test_parts_have_addresses_of_their_own():
    money = privacy_filter()
    addresses = {
        permit.take(Gaussian(z))
        for z, permit in (money.permit(0.1, 2) for _ in range(5))
        for _ in range(2)
    }
    assert len(addresses) == 10
    assert all(iteration >= 2**40 for _, iteration, _ in addresses)


def test_it_uses_up_its_permit():
    permit = Permit(0, 0, (Gaussian(Z),))
    PrivacyFilter(permit, Z)
    for again in (
        lambda: PrivacyFilter(permit, Z),
        lambda: PrivacyFilter(Permit(0, 0, (Gaussian(4.0),)), Z),
    ):
        with pytest.raises(PrivacyBudgetExceeded):
            again()


def test_a_closed_filter_says_what_was_given_out_and_gives_out_no_more():
    money = privacy_filter()
    paid = [event for share in (0.1, 0.25) for event in money.permit(share)[1].events]
    (whole,) = money.close()
    assert gaussian_mu(paid) <= gaussian_mu([whole]) == pytest.approx(gaussian_mu(paid), rel=1e-6)
    with pytest.raises(PrivacyBudgetExceeded):
        money.permit(0.01)
    # It was counted as used: nobody but the privacy filter knows that nothing was bought.
    assert privacy_filter().close() == (Gaussian(Z * 1e3),)
    with pytest.raises(TypeError):
        copy.copy(money)


def test_a_forked_copy_spends_nothing(in_fork):
    """What the copy spends, the original would not know of."""
    money = privacy_filter()
    money.permit(0.25)
    answer = in_fork(lambda: money.permit(0.5))
    assert isinstance(answer, PrivacyBudgetExceeded)
    assert money.permit(0.75)


def test_parts_too_small_to_be_added_up_are_refused():
    """1 + 1e-17 is 1 to a float: such parts would cost nothing, however many."""
    money = privacy_filter()
    money.permit(1.0)
    for share in (1e-17, 1e-12, 9e-7):
        with pytest.raises(PrivacyBudgetExceeded):
            money.permit(share)
        with pytest.raises(PrivacyBudgetExceeded):
            privacy_filter().permit(share)


def test_threads_share_one_filter():
    money, interval = privacy_filter(), sys.getswitchinterval()

    def spend(_):
        try:
            return money.permit(1e-3)[1].events
        except PrivacyBudgetExceeded:
            return ()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(16) as threads:
            paid = [event for events in threads.map(spend, range(3000)) for event in events]
    finally:
        sys.setswitchinterval(interval)
    assert len(paid) == 1000
    assert gaussian_mu(paid) <= 1 / Z


def test_nobody_spends_between_a_look_at_the_rest_and_its_spending():
    """A share that takes its time to be compared: what it was compared with is there until it is gone."""
    money, looked, other_is_done = privacy_filter(), Event(), Event()

    class Slow(float):
        def __le__(self, rest):
            fits = float(self) <= rest
            looked.set()
            other_is_done.wait(0.3)  # which it is not, if it has to wait
            return fits

    def spend(share):
        try:
            return money.permit(share)[1].events
        except PrivacyBudgetExceeded:
            return ()

    def spend_too():
        looked.wait()
        paid = spend(1.0)
        other_is_done.set()
        return paid

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(spend, Slow(1.0)), threads.submit(spend_too)
        assert gaussian_mu([*first.result(), *second.result()]) <= 1 / Z
