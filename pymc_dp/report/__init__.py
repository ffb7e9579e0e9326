"""What a released result guarantees, written for people who have to answer for it."""

from pymc_dp.report.document import PrivacyReport, privacy_report

__all__ = ["PrivacyReport", "privacy_report"]
