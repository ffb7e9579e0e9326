"""Asking the records: queries, exact sums of their answers wherever the records are, and noise on these.

A :class:`~pymc_dp.records.queries.Query` says what is computed of every unit.
:class:`~pymc_dp.records.sums.RecordSums` answers it in whole numbers, exactly and in private, from the records
of this process or of a cluster. A :class:`~pymc_dp.records.curator.Curator` adds noise to these, once, and
is the only way from records to a release.
"""
