"""Faults in rules and in the loop: steps, bounds, stopping, budgets, saddles, rounding."""

from __future__ import annotations

from mutant import Mutant

STEPS = [
    Mutant(
        "proximal-step-ignored",
        "core/engines/reference.py",
        "return theta - step * residual",
        "return theta - residual",
        "inference/test_infer.py::test_custom_rule_is_the_rule_it_says[reference-binary]",
    ),
    Mutant(
        "momentum-without-weight",
        "core/engines/reference.py",
        "s.u = g1 * s.u + (1 - g1) * residual\n        return",
        "s.u = g1 * s.u + residual\n        return",
        "inference/test_infer.py::test_custom_rules_memory_lasts[reference]",
    ),
    Mutant(
        "adam-without-square",
        "core/engines/reference.py",
        "(1 - g2) * residual**2",
        "(1 - g2) * abs(residual)",
        "rules/test_kinds.py::test_formulas_by_hand[4]",
    ),
    Mutant(
        "adam-not-centered",
        "core/engines/reference.py",
        "residual = center(residual)",
        "residual = 1.0 * residual",
        "rules/test_kinds.py::test_formulas_by_hand[4]",
    ),
    Mutant(
        "printed-adam-weights-swapped",
        "core/engines/reference.py",
        "s.v = (1 - g2) * s.v + g2 * target**2",
        "s.v = g2 * s.v + (1 - g2) * target**2",
        "rules/test_kinds.py::test_formulas_by_hand[5]",
    ),
    Mutant(
        "mean-weights-swapped",
        "core/engines/reference.py",
        "(1 - step) * s.q + step * self._softmax(s.theta)",
        "step * s.q + (1 - step) * self._softmax(s.theta)",
        "rules/test_kinds.py::test_every_backend_has_every_kind[1-any-cpu]",
    ),
    Mutant(
        "temperature-ignored",
        "core/engines/reference.py",
        "plan.inverse_temperature * self.gradient(s.q)\n",
        "1.0 * self.gradient(s.q)\n",
        "rules/test_kinds.py::test_every_backend_has_every_kind[0-any-cpu]",
    ),
    Mutant(
        "safeguard-dropped",
        "core/engines/reference.py",
        "> f + slack(f, self.dtype):",
        "> np.inf:",
        "conformance/test_conformance.py::"
        "test_the_safeguard_is_needed[reference-strong-repulsion-binary]",
    ),
    Mutant(
        "entropy-sign",
        "core/engines/reference.py",
        "+ float((positive * np.log(positive)).sum())",
        "- float((positive * np.log(positive)).sum())",
        "conformance/test_conformance.py::test_free_energy[float32-reference-factor-arity-4]",
    ),
    Mutant(
        "annealed-step-not-for-its-temperature",
        "core/solve/rules/anneal.py",
        "problem.curvature.damping(1.0 / temperature)",
        "problem.curvature.damping(1.0)",
        "rules/test_solvers.py::test_steps_are_certified_for_their_temperature",
    ),
    Mutant(
        "adaptive-without-fallback",
        "core/solve/rules/parallel.py",
        "adaptive=True, fallback=safe)",
        "adaptive=True)",
        "conformance/test_conformance.py::"
        "test_the_safeguard_is_needed[reference-strong-repulsion-binary]",
    ),
    Mutant(
        "momentum-gamma",
        "core/solve/rules/parallel.py",
        "gamma: float = 0.95",
        "gamma: float = 0.9",
        "inference/test_infer.py::test_custom_rules_memory_lasts[reference]",
    ),
]

BOUNDS = [
    Mutant(
        "certified-damping-too-small",
        "core/engines/plan.py",
        "(curvature / 4 - 0.5)",
        "(curvature / 4 - 1.0)",
        "properties/test_curvature.py::test_steps",
    ),
    Mutant(
        "local-steps-from-lambda",
        "core/solve/curvature.py",
        "d = damping_for(self.local)",
        "d = damping_for(self.largest)",
        "properties/test_curvature.py::test_steps",
    ),
    Mutant(
        "lipschitz-of-one-end",
        "core/solve/curvature.py",
        "min(bound, max(up, down))",
        "min(bound, up)",
        "properties/test_curvature.py::test_pairwise_lipschitz_is_the_spectral_norm",
    ),
    Mutant(
        "lanczos-rounded-down",
        "core/solve/curvature.py",
        "return top + LANCZOS_MARGIN * abs(top)",
        "return top - LANCZOS_MARGIN * abs(top)",
        "properties/test_curvature.py::test_large_pairwise_curvature_is_close",
    ),
    Mutant(
        "curvature-of-one-end-of-a-table",
        "core/terms/factor.py",
        "np.add.at(out, self.scopes[:, b], norms[self.index])",
        "np.add.at(out, self.scopes[:, b], 0.0 * norms[self.index])",
        "properties/test_curvature.py::test_local_bounds_dominate_the_hessian",
    ),
    Mutant(
        "ising-curvature-halved",
        "core/terms/pairwise.py",
        "return self._sum_abs(layout, 2.0)  #",
        "return self._sum_abs(layout, 1.0)  #",
        "properties/test_curvature.py::test_local_bounds_dominate_the_hessian",
    ),
    Mutant(
        "potts-curvature-halved",
        "core/terms/pairwise.py",
        "return self._sum_abs(layout, 1.0)",
        "return self._sum_abs(layout, 0.5)",
        "properties/test_curvature.py::test_local_bounds_dominate_the_hessian",
    ),
    Mutant(
        "norm-of-small-blocks",
        "core/terms/factor.py",
        "0.5 * (np.hypot(p + s, r - q)",
        "0.4 * (np.hypot(p + s, r - q)",
        "properties/test_curvature.py::test_norms_of_small_blocks",
    ),
    Mutant(
        "late-norm-is-no-bound",
        "core/terms/factor.py",
        "return np.asarray(size * np.linalg.norm",
        "return np.asarray(0.5 * size * np.linalg.norm",
        "properties/test_curvature.py::test_norms_that_come_too_late_are_bounds",
    ),
    Mutant(
        "kernel-range-forgets-the-self-message",
        "core/filters/operator.py",
        "return low - xp.amax(self_weights, -1), high",
        "return low, high",
        "terms/test_gaussian.py::test_bounds_hold_against_the_dense_hessian",
    ),
]

STOPPING = [
    Mutant(
        "overshooting-called-an-oscillation",
        "core/solve/rules/base.py",
        "return not (self.never_rises or self.overshoots)",
        "return not self.never_rises",
        "inference/test_oscillation.py::test_a_rule_that_overshoots_is_not_judged_by_its_swings",
    ),
    Mutant(
        "oscillation-although-swings-decay",
        "core/solve/session.py",
        "max(STEADY * swings.max(), SMALLEST_SWING)",
        "SMALLEST_SWING",
        "inference/test_oscillation.py::test_a_few_repetitions_prove_nothing[reference] "
        "inference/test_oscillation.py::test_swings_that_decay_are_no_oscillation[reference]",
    ),
    Mutant(
        "oscillation-of-rounding",
        "core/solve/session.py",
        "max(STEADY * swings.max(), SMALLEST_SWING)",
        "STEADY * swings.max()",
        "inference/test_oscillation.py::test_swings_of_rounding_are_no_oscillation[reference]",
    ),
    Mutant(
        "oscillation-of-q-not-seen",
        "core/solve/session.py",
        "loop.period2 <= REPEATED * swings[-1]",
        "loop.period2 < 0.0",
        "inference/test_oscillation.py::test_marginals_that_repeat_are_an_oscillation[reference]",
    ),
    Mutant(
        "map-energies-not-scaled",
        "core/solve/solve_map.py",
        "if sizes and max(sizes) < SMALLEST_SIZE:",
        "if False:",
        "inference/test_map_scale.py::test_the_optimum_is_found_at_every_scale",
    ),
    Mutant(
        "map-energies-told-in-another-unit",
        "core/solve/solve_map.py",
        "np.ldexp(np.minimum.accumulate(rows.free_energy), exponent)",
        "np.minimum.accumulate(rows.free_energy)",
        "inference/test_map_scale.py::test_a_search_is_the_same_at_every_scale",
    ),
    Mutant(
        "plain-chains-without-a-limit-of-their-own",
        "core/solve/search/labelling.py",
        "if problem.plain_chains and not problem.lowered.extras:",
        "if False:",
        "inference/test_map_scale.py::test_the_reference_ends_by_itself",
    ),
    Mutant(
        "fixed-point-test-dropped",
        "core/solve/stationarity.py",
        "np.asarray(residual <= tol + rounding)",
        "np.asarray(residual <= 1.0 + rounding)",
        "inference/test_stationarity.py::test_a_saturated_start_is_left[reference-fixed] "
        "inference/test_stationarity.py::test_a_saturated_start_is_left[reference-adhoc]",
    ),
    Mutant(
        "failed-tests-do-not-wait",
        "core/solve/loop.py",
        "waiting = max(1, 2 * runs[k].waiting)",
        "waiting = 1",
        "inference/test_stationarity.py::test_a_failed_test_waits_longer_each_time",
    ),
    Mutant(
        "nan-is-no-divergence",
        "core/solve/loop.py",
        "return Status.DIVERGED if np.isnan(change) else None",
        "return None",
        "inference/test_infer.py::test_nan_is_never_called_converged[reference-cards0]",
    ),
    Mutant(
        "stages-exceed-max-iters",
        "core/solve/history.py",
        "else min(self.max_iters, iterations)",
        "else iterations",
        "inference/test_loop.py::test_a_stage_keeps_to_the_limit_of_the_whole",
    ),
    Mutant(
        "trace-one-update-late",
        "core/solve/loop.py",
        "seconds, f[1:], change",
        "seconds, f[:-1], change",
        "inference/test_infer.py::test_row_t_is_the_state_after_t_updates",
    ),
    Mutant(
        "the-worst-state-is-kept",
        "core/solve/loop.py",
        "np.nanargmin(rows.free_energy)",
        "np.nanargmax(rows.free_energy)",
        "inference/test_infer.py::test_keep_best",
    ),
    Mutant(
        "earlier-stages-forgotten",
        "core/solve/history.py",
        "lower(self.earlier, self.best)",
        "self.earlier",
        "inference/test_loop.py::test_the_best_state_of_earlier_stages_is_kept",
    ),
    Mutant(
        "callback-cannot-stop",
        "core/solve/history.py",
        "return bool(self.callback(progress))",
        "return self.callback(progress) is None",
        "inference/test_infer.py::test_callback_sees_progress_and_stops[reference]",
    ),
]

BUDGETS = [
    Mutant(
        "no-time-for-the-last-f",
        "core/solve/history.py",
        "return left - ending",
        "return left",
        "inference/test_pace.py::test_the_pace_reserves_the_last_evaluation",
    ),
    Mutant(
        "chunks-longer-than-the-budget",
        "core/solve/history.py",
        "self.chunk = min(self.chunk, fits)",
        "self.chunk = max(self.chunk, fits)",
        "inference/test_pace.py::test_the_pace_reserves_the_last_evaluation",
    ),
    Mutant(
        "measured-tests-ignored",
        "core/solve/history.py",
        "self.evaluation if self.residual is None else self.residual",
        "self.evaluation",
        "inference/test_pace.py::test_durations_are_guessed_until_they_are_known",
    ),
    Mutant(
        "unused-orders-not-given-back",
        "core/solve/loop.py",
        "and shuffle and made < n:",
        "and shuffle and made > n:",
        "inference/test_stationarity.py::test_random_orders_do_not_depend_on_the_looks_at_the_clock",
    ),
    Mutant(
        "parts-of-a-sweep-overlap",
        "core/solve/loop.py",
        "cuts = [(k, min(k + each, b))",
        "cuts = [(k, min(k + each + 1, b))",
        "inference/test_pace.py::test_only_sweeps_in_a_fixed_order_have_parts",
    ),
    Mutant(
        "f-told-for-equal-arrays",
        "core/solve/history.py",
        "if known is q)",
        "if np.array_equal(known, q))",
        "inference/test_pace.py::test_f_is_not_evaluated_again_where_it_was_told",
    ),
    Mutant(
        "budget-of-a-stage-ignored",
        "core/solve/history.py",
        "for x in (self.budget, seconds)",
        "for x in (seconds,)",
        "inference/test_loop.py::test_limits_are_only_narrowed",
    ),
]

SEARCH = [
    Mutant(
        "auto-convexity-threshold",
        "core/solve/rules/auto.py",
        "scale <= 2.0",
        "scale <= 4.0",
        "rules/test_solvers.py::test_auto_searches_where_f_may_have_two_minima",
    ),
    Mutant(
        "saddles-only-if-steep",
        "core/solve/stationarity.py",
        "if rho < -1.0 - margin:",
        "if rho < -4.0 - margin:",
        "inference/test_stationarity.py::test_symmetric_fields_end_on_a_named_saddle[-1.0-fixed]",
    ),
    Mutant(
        "minima-called-too-early",
        "core/solve/stationarity.py",
        "made >= least and rho - RESIDUAL_FACTOR * error > -1.0",
        "made >= 1 and rho + RESIDUAL_FACTOR * error > -1.0",
        "inference/test_stationarity.py::test_a_saddle_that_concerns_few_of_many_variables",
    ),
    Mutant(
        "spectrum-calls-saddles-minima",
        "core/solve/session.py",
        "if lowest > -2.0:",
        "if lowest > -200.0:",
        "inference/test_stationarity.py::"
        "test_rules_that_leave_saddles_of_terms_without_tables[{}-auto]",
    ),
    Mutant(
        "nudge-without-noise",
        "core/solve/session.py",
        "NOISE_SCALE * rng.normal(size=len(q))",
        "0.0 * rng.normal(size=len(q))",
        "inference/test_pace.py::"
        "test_without_time_for_a_test_symmetric_starts_are_left_all_the_same[anneal]",
    ),
    Mutant(
        "portfolio-keeps-the-worst",
        "core/solve/rules/portfolio.py",
        "if best is None or outcome.free_energy < best.free_energy:",
        "if best is None or outcome.free_energy > best.free_energy:",
        "rules/test_solvers.py::test_portfolio_keeps_the_best_member_and_says_which",
    ),
    Mutant(
        "annealing-starts-cold",
        "core/solve/rules/anneal.py",
        "self.hot or max(1.0, session.problem.curvature.smallest / 2)",
        "self.hot or 1.0",
        "rules/test_solvers.py::test_annealing_does_not_depend_on_the_start",
    ),
]

ROUNDING = [
    Mutant(
        "lowest-labelling-not-kept",
        "core/solve/search/minimum.py",
        "if energy < self.lowest:",
        "if energy > self.lowest or self.labels is None:",
        "rules/test_search.py::test_the_labelling_is_the_best_that_chains_ended_with",
    ),
    Mutant(
        "rules-compete-everywhere",
        "core/solve/search/minimum.py",
        "if self.lowered.hard or not self.flat:",
        "if self.lowered.hard:",
        "rules/test_search.py::test_adam_competes_where_sampling_gains_little",
    ),
    Mutant(
        "feasible-labelling-dropped",
        "core/solve/rounding.py",
        "reduced.append(one_hot(lowered.layout.offsets, result.feasible))",
        "pass",
        "inference/test_forbidden.py::test_rounding_falls_back_on_the_feasible_labelling",
    ),
    Mutant(
        "groups-that-raise-the-energy",
        "core/solve/rounding.py",
        "if new <= e or size == 1:",
        "if new <= e or size >= 1:",
        "test_result.py::test_groups_are_halved_and_improved",
    ),
    Mutant(
        "greedy-step-uphill",
        "core/solve/rounding.py",
        "if new < e:",
        "if new > e:",
        "test_result.py::test_groups_are_halved_and_improved",
    ),
    Mutant(
        "finder-keeps-the-last",
        "core/solve/forbidden.py",
        "if energy < self.energy:",
        "if energy < np.inf:",
        "inference/test_forbidden.py::test_the_finder_keeps_the_labelling_of_lower_energy",
    ),
    Mutant(
        "unlikely-labels-first",
        "core/solve/forbidden.py",
        "key=lambda e: q[e])",
        "key=lambda e: -q[e])",
        "inference/test_forbidden.py::test_backtracking_prefers_likely_labels",
    ),
    Mutant(
        "exhausted-search-proves-nothing",
        "core/solve/forbidden.py",
        "    return None, True\n",
        "    return None, False\n",
        "inference/test_forbidden.py::test_backtracking_finds_what_exists",
    ),
]

MUTANTS = [*STEPS, *BOUNDS, *STOPPING, *BUDGETS, *SEARCH, *ROUNDING]
