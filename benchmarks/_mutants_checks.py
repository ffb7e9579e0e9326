"""Mutants of what stands around a release: origins, units, refusals, order, statements."""

from _mutants import Mutant

DIFFERENTIAL = "tests/test_differential.py"
ORIGINS = "tests/likelihood/test_origins.py"
ROLES = "tests/likelihood/test_roles.py"
SEPARABILITY = "tests/likelihood/test_separability.py"
RECORDS = "tests/likelihood/test_records.py"
COMPILED = "tests/likelihood/test_compiled.py"
HOST = "tests/steps/test_host.py"
NEIGHBOURS = "tests/steps/test_neighbours.py"
INTERRUPTS = "tests/test_interrupts.py"
MECHANISMS = "tests/test_mechanisms.py"
RESULTS = "tests/test_results.py"
REPORT = "tests/test_report.py"
SAMPLING = "tests/test_sampling.py"
PREDICTION = "tests/test_prediction.py"
INTEGRATE = "tests/test_integrate_out.py"
EXPECTED = "tests/test_expected.py"
COMPARE = "tests/assessment/test_compare.py"

ORIGINS_PY = "likelihood/origins.py"
CONTAINMENT = "likelihood/containment.py"
ROLES_PY = "likelihood/roles.py"
SIZES = "likelihood/sizes.py"
UNIT = "likelihood/unit.py"

# -- what had been found and mended, broken again -----------------------------------------------------

MENDED = [
    # What is private follows from how a model is written, and from no value.
    Mutant(
        CONTAINMENT,
        "        if observed & set(ancestors([det], blockers=free)) or origins.private([det], free)\n",
        """        if observed & set(ancestors([det], blockers=free))
        or any(
            set(v.data.ravel().tolist())
            <= {
                x
                for w in origins.leaves(model.observed_RVs, free)
                if isinstance(w, Constant)
                for x in w.data.ravel().tolist()
            }
            if isinstance(v, Constant)
            else not origins.is_declared(name)
            for v, name in origins.leaves([det], free).items()
        )
""",
        "Whether a grid is public is not found out by comparing it with data",
        f"{DIFFERENTIAL} -k 'test_a_sample_tells_nothing and a_public_grid and penalty'",
    ),
    Mutant(
        ORIGINS_PY,
        "return isinstance(v, Constant) and (None in shape or math.prod(shape) > 1)",
        "return isinstance(v, Constant) and math.prod(v.data.shape) > 1 and v.data.std() > 0",
        "An array filled with one value is private like any other",
        f"{DIFFERENTIAL} -k 'test_a_sample_tells_nothing and a_column_of_zeros and penalty'",
    ),
    Mutant(
        "steps/host.py",
        "private_data=tuple(leaf.name for leaf in roles.record_data if leaf.private),",
        "private_data=tuple(leaf.name for leaf in roles.record_data if leaf.values.any()),",
        "The fingerprint of a run depends on no value",
        f"{DIFFERENTIAL} -k 'test_a_sample_tells_nothing and a_column_of_zeros and penalty'",
    ),
    Mutant(
        "likelihood/naming.py",
        '    return f"{UNNAMED[0]}{use}`" if use else UNNAMED[1]\n',
        '    return f"{UNNAMED[0]}{use}`, of shape {node.type.shape}" if use else UNNAMED[1]\n',
        "What an array is called does not tell the number of records",
        f"{DIFFERENTIAL} -k 'does_not_tell_who_comes_or_goes and penalty'",
    ),
    # The number of units, where it is private.
    Mutant(
        SIZES,
        "    if public_size:\n        _refuse_latents(model, roles)\n    else:\n        _refuse_size(model, roles)\n",
        "    _refuse_latents(model, roles)\n    if not public_size:\n        _refuse_size(model, roles)\n",
        "Lengths of public arrays are not compared with a private number of units",
        f"{DIFFERENTIAL} -k 'who_comes_or_goes'",
    ),
    Mutant(
        ROLES_PY,
        "aligned = [k for k, d in enumerate(dims or ()) if d in record_dims]",
        "aligned = [k for k, s in enumerate(values_of(node).shape) if s == n]",
        "Whether public data are as long as there are records is not looked at",
        f"{SEPARABILITY} -k 'test_public_rows_need_the_dimension_of_the_records'",
    ),
    Mutant(
        "steps/host.py",
        "n_units=roles.n_units if tells_size else None,",
        "n_units=roles.n_units,",
        "A private number of units is in no statement and no fingerprint",
        f"{DIFFERENTIAL} -k 'does_not_tell_who_comes_or_goes and penalty'",
    ),
    Mutant(
        "steps/host.py",
        "n_records=roles.n_records if tells_size else None,",
        "n_records=roles.n_records,",
        "A private number of records is in no fingerprint",
        f"{DIFFERENTIAL} -k 'does_not_tell_who_comes_or_goes and penalty'",
    ),
    Mutant(
        "steps/host.py",
        "return self.roles.n_units if self.run.neighbours.public_size else 1",
        "return self.roles.n_units",
        "No default scale is chosen by a private number of units",
        f"{DIFFERENTIAL} -k 'does_not_tell_who_comes_or_goes and penalty'",
    ),
    Mutant(
        "evidence/expected.py",
        "    if delta is None and not relation.public_size:\n",
        "    if delta is None and made_up.n_units < 1:\n",
        "Under add-or-remove no δ is made of the number of units",
        f"{DIFFERENTIAL} -k 'test_defaults_that_would_tell_the_number_are_asked_for'",
    ),
    Mutant(
        "evidence/expected.py",
        "    elif relation.public_size:\n        n = roles.n_records\n",
        "    elif roles.n_records:\n        n = roles.n_records\n",
        "Under add-or-remove not as many records are made up as there are",
        f"{DIFFERENTIAL} -k 'test_defaults_that_would_tell_the_number_are_asked_for'",
    ),
    Mutant(
        "evidence/expected.py",
        "(not relation.public_size or n != roles.n_records)",
        "n != roles.n_records",
        "Whose made-up records are is not taken from a private number of rows",
        f"{DIFFERENTIAL} -k 'expected or would_tell or nothing_else_tells'",
    ),
    # Missing values in what a curator adds up.
    Mutant(
        "mechanisms/curator.py",
        "instead = np.zeros(shape) if joint else lower",
        "instead = lower",
        "A row with a gap is no row that no record can have",
        f"{MECHANISMS} -k 'test_a_row_with_a_missing_value'",
    ),
    Mutant(
        "mechanisms/curator.py",
        "    if joint:\n        rows =",
        "    if joint and not missing.size:\n        rows =",
        "Entries that belong together go together where one is missing",
        f"{MECHANISMS} -k 'missing_value'",
    ),
    Mutant(
        "mechanisms/curator.py",
        "clamped = np.clip(np.where(_missing(records, joint), instead, records), lower, upper)",
        "clamped = np.nan_to_num(np.clip(records, lower, upper))",
        "What is missing counts as a value within the bounds",
        f"{MECHANISMS} -k 'test_sums_are_exact_and_clamped'",
    ),
    Mutant(
        "mechanisms/statistics.py",
        "        u = clamp(u, -1.0, 1.0)\n",
        "        u = np.clip(u, -1.0, 1.0)\n",
        "Moments are formed of records that can be, gaps or not",
        f"{MECHANISMS} -k 'second_moments'",
    ),
    Mutant(
        "mechanisms/statistics.py",
        "np.clip(_present(x, a), a, b)",
        "np.clip(x, a, b)",
        "A missing value is moved into its range before anything is made of it",
        f"{MECHANISMS} -k 'missing_value'",
    ),
    # Potentials, refusals, the unit.
    Mutant(
        CONTAINMENT,
        "    for potential in model.potentials:\n",
        "    for potential in [p for p in model.potentials if p.ndim == 0]:\n",
        "A Potential with a term for each of the censored is refused",
        f"{ORIGINS} -k 'potential_for_the_censored'",
    ),
    Mutant(
        CONTAINMENT,
        "        numbers = [] if rv is None else numbers_of_prior(rv)\n",
        "        numbers = (\n"
        "            [v for v in graph_inputs([graph]) if isinstance(v, Constant)]\n"
        "            if rv is None\n"
        "            else numbers_of_prior(rv)\n"
        "        )\n",
        "Arrays written into a Potential are people's",
        f"{ORIGINS} -k 'potential_for_the_censored'",
    ),
    Mutant(
        ROLES_PY,
        "constants, a price list) is declared with `public=[...]`, by the name that it has here;",
        'constants, a price list) is declared with `public=[" + repr(name) + "]`;',
        "A refusal does not advise to declare people's covariates public",
        f"{ORIGINS} -k 'test_no_refusal_says'",
    ),
    Mutant(
        "planning.py",
        '        if not self.guarantee.unit.startswith("one record"):\n',
        '        if self.guarantee.unit.startswith("one"):\n',
        "A plan says that a person with several rows is not protected",
        f"{SAMPLING} -k 'test_a_plan_says_first_what_is_protected'",
    ),
    Mutant(
        UNIT,
        """    return f"one record of {names[0]!r}" if len(names) == len(record_dims) == 1 else "one record"\n""",
        """    return f"one {names[0]}" if len(names) == len(record_dims) == 1 else "one record"\n""",
        "A record is called a person only where it was said that it is",
        f"{ROLES} -k 'test_labels_that_repeat_make_no_difference'",
    ),
    # What fails, fails before anything is spent; an interrupt loses nothing.
    Mutant(
        "sampling.py",
        "    _rehearse(built, for_host)\n    with hidden(quietly):\n",
        "    with hidden(quietly):\n",
        "What can fail without data fails before anything is spent",
        f"{SAMPLING} -k 'test_what_can_fail_without_data'",
    ),
    Mutant(
        "sampling.py",
        '    except ImportError as missing:\n        for_host["progressbar"] = False\n',
        "    except ImportError as missing:\n",
        "A progress bar that cannot be shown costs no run",
        f"{SAMPLING} -k 'test_a_progress_bar_that_cannot_be_made'",
    ),
    Mutant(
        "steps/at_once.py",
        "            if self._finish is None or not isinstance(failure, KeyboardInterrupt):\n",
        "            if self._finish is None or isinstance(failure, KeyboardInterrupt):\n",
        "Ctrl-C does not lose a law that is released and paid for",
        f"{INTERRUPTS} -k 'test_a_finished_law_is_not_lost and known'",
    ),
    Mutant(
        "steps/anchored.py",
        "        self._finish = partial(self._normal, anchor, anchor, parameters.labels, parameters.largest)\n",
        "",
        "Ctrl-C in what follows a search does not lose what it found",
        f"{INTERRUPTS} -k 'test_a_finished_law_is_not_lost'",
    ),
    Mutant(
        "sampling.py",
        "    found = _sampled(built, for_host)\n    with deferred(lambda: None):\n",
        "    found = _sampled(built, for_host)\n    with nullcontext():\n",
        "Ctrl-C while a result is released and judged does not lose it",
        f"{INTERRUPTS} -k 'test_a_finished_law_is_not_lost and while'",
    ),
    Mutant(
        "sampling.py",
        "        with nullcontext() if in_processes else deferred(end):\n",
        "        with nullcontext():\n",
        "Ctrl-C ends a chain with its iteration, and no other begins",
        f"{INTERRUPTS} -k 'test_a_chain_ends_with_its_iteration'",
    ),
    Mutant(
        "steps/host.py",
        "        self.was_interrupted |= self._in_chain\n",
        "",
        "After an interrupt in one chain no other is begun",
        f"{INTERRUPTS} -k 'test_a_callback_may_interrupt_too'",
    ),
    # Reading is free; statistics; separability.
    Mutant(
        "steps/host.py",
        '        return step.__dict__["stats_dtypes"]\n',
        '        step.run.reserve()\n        return step.__dict__["stats_dtypes"]\n',
        "Reading an attribute spends nothing",
        f"{HOST} -k 'test_reading_an_attribute_spends_nothing'",
    ),
    Mutant(
        "results.py",
        '    return {*json.loads(attrs.get("privacy_statistics", "[]")), *STATS}\n',
        """    def own(kind: Any) -> set[str]:
        return {*kind.own_stats}.union(*map(own, kind.__subclasses__()))

    return {*json.loads(attrs.get("privacy_statistics", "[]")), *STATS, *own(PrivateStep)}
""",
        "What one step declares as its statistics no other may release",
        f"{HOST} -k 'test_statistics_of_one_step_are_no_others'",
    ),
    Mutant(
        "likelihood/separability.py",
        "            if not _same(before[~hit], after[~hit]):\n",
        "            if not np.isfinite(after[~hit]).all() or not _same(before[~hit], after[~hit]):\n",
        "Where nothing can be computed is not taken for dependence",
        f"{SEPARABILITY} -k 'no_value_of_a_record or raw_column or zoo'",
    ),
    Mutant(
        "likelihood/separability.py",
        "    return np.array_equal(a, b, equal_nan=True)\n",
        "    return np.array_equal(a, b)\n",
        "A term that is undefined twice has not changed",
        f"{SEPARABILITY} -k 'no_value_of_a_record or raw_column or zoo'",
    ),
    Mutant(
        "likelihood/separability.py",
        "    return np.array_equal(a, b, equal_nan=True)\n",
        "    return np.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)\n",
        "A dependence is refused however small it is",
        f"{SEPARABILITY} -k 'coupl or black_box'",
    ),
    Mutant(
        "likelihood/separability.py",
        '_KINDS = ("copy", "nan", "noise", "infinite", "extreme")\n',
        '_KINDS = ("nan",)\n',
        "Dependence on whole numbers is found as well",
        f"{SEPARABILITY} -k 'coupl or black_box'",
    ),
    Mutant(
        "likelihood/separability.py",
        "_SPREADS = (0.0, 0.3, 1.0, 1.0, 3.0, 3.0)\n",
        "_SPREADS = (0.0, 0.1)\n",
        "Dependence that shows only at other parameters is found",
        f"{SEPARABILITY} -k 'coupling or mean_without_influence'",
    ),
    Mutant(
        "likelihood/separability.py",
        "        _compare_alone(likelihood, points[:2], rows)\n",
        "",
        "A term does not depend on a record's place either",
        f"{RECORDS} -k 'position or number_of_records'",
    ),
    # What is put into a result later.
    Mutant(
        "results.py",
        "        known |= {draws: variables, of_draws: statistics}\n",
        "        known |= {draws: list(groups[draws].data_vars) if draws in groups else (), of_draws: statistics}\n",
        "A variable that was put among the draws is not covered",
        f"{REPORT} -k 'test_what_was_put_into_a_result_later'",
    ),
    Mutant(
        "results.py",
        "    found = [name for name in groups if name not in known]\n",
        "    found: list[str] = []\n",
        "A group that was put into a released result is not covered",
        f"{REPORT} -k 'later'",
    ),
    Mutant(
        "prediction.py",
        "    outcomes.refuse_out_of_range(next(outcomes.points(posterior)), n, given)\n",
        "",
        "A prediction for a group that is not there is refused",
        f"{PREDICTION} -k 'test_an_index_of_no_group_is_refused'",
    ),
    Mutant(
        "likelihood/outcomes.py",
        "            if low < -length or high >= length:\n",
        "            if low < -length or high > length:\n",
        "The first group that is not there is none",
        f"{PREDICTION} -k 'test_an_index_of_no_group_is_refused'",
    ),
    # A promise of nothing is said to be one.
    Mutant(
        "privacy/guarantee.py",
        "        if power >= _TOLD_APART:\n",
        "        if power > 1:\n",
        "A huge ε is said to protect next to nothing",
        f"{SAMPLING} -k 'test_a_promise_of_nothing_is_said_to_be_one'",
    ),
    Mutant(
        "privacy/guarantee.py",
        "        if self.delta * (self.n_units or 1 / _LARGE_DELTA) >= 1:\n",
        "        if self.delta * (self.n_units or 0) >= 1:\n",
        "A δ too large for any data set is said to be, where their number is private",
        f"{SAMPLING} -k 'test_a_promise_of_nothing_is_said_to_be_one'",
    ),
    Mutant(
        "privacy/guarantee.py",
        "        if self.delta * (self.n_units or 1 / _LARGE_DELTA) >= 1:\n",
        "        if self.delta >= 1:\n",
        "A δ above one in the number of units is said to be too large",
        f"{SAMPLING} -k 'test_a_promise_of_nothing_is_said_to_be_one'",
    ),
    Mutant(
        "sampling.py",
        "    for caution in built.guarantee.cautions:\n",
        "    for caution in ():\n",
        "Cautions are said before a run",
        f"{SAMPLING} -k 'test_a_promise_of_nothing_is_said_to_be_one'",
    ),
    Mutant(
        "privacy/ledger.py",
        "        return composed_epsilon(self.events(), self.delta)\n",
        "        return sum(composed_epsilon(plan.total, self.delta) for plan in self.runs())\n",
        "What is spent is the cost of all runs together, composed",
        "tests/privacy/test_ledger.py -k 'reserved_is_spent_and_composes'",
    ),
    # Functions whose shape people have.
    Mutant(
        "integration.py",
        "        terms = pt.switch(there[:, None] > 0.5, terms, 0.0)\n",
        "        if not panel.there.all():\n            terms = pt.switch(there[:, None] > 0.5, terms, 0.0)\n",
        "A compiled function does not tell whether somebody has fewer rows",
        f"{INTEGRATE} -k 'test_people_without_records'",
    ),
    Mutant(
        ORIGINS_PY,
        "                and math.prod(c.type.shape) <= _MAX_AXES\n",
        "",
        "An array of people is no size of a variable",
        f"{ROLES} -k 'test_refused_by_name'",
    ),
]

MUTANTS: list[Mutant] = MENDED
