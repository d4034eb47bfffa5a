"""Faults in modes: cells, weights, splits, parts of states."""

from __future__ import annotations

from mutant import Mutant

TESTS = "inference/test_modes.py::"
PARTS = "rules/test_patches.py::"

MUTANTS = [
    Mutant(
        "cells-overlap",
        "core/solve/search/cells.py",
        "keep[start + clamp.label] = clamp.held",
        "keep[start + clamp.label] = True",
        f"{TESTS}test_two_modes_of_a_symmetric_field",
    ),
    Mutant(
        "children-of-converged-cells-converged",
        "core/solve/search/cells.py",
        "clamp), self.q, np.inf, status)",
        "clamp), self.q, np.inf, self.status)",
        f"{TESTS}test_every_mode_is_a_local_minimum_of_its_cell",
    ),
    Mutant(
        "users-labels-not-mapped",
        "core/solve/search/cells.py",
        "int(reduction.full.owner[entry])",
        "clamp.variable",
        f"{TESTS}test_evidence_and_the_users_numbering",
    ),
    Mutant(
        "mixture-counts-the-best-alone",
        "mixture.py",
        "return low - float(np.log(np.exp(low - f).sum()))",
        "return low",
        f"{TESTS}test_weights_and_free_energies_of_mixtures",
    ),
    Mutant(
        "weights-upside-down",
        "mixture.py",
        "weight = np.exp(low - f)",
        "weight = np.exp(f - low)",
        f"{TESTS}test_weights_and_free_energies_of_mixtures",
    ),
    Mutant(
        "samples-of-one-mode",
        "mixture.py",
        "out[rows] = draw(layout, mode.q, len(rows), rng)",
        "out[rows] = draw(layout, modes[0].q, len(rows), rng)",
        f"{TESTS}test_two_modes_of_a_symmetric_field",
    ),
    Mutant(
        "split-starts-elsewhere",
        "core/solve/search/modes.py",
        "starts = [child.condition(layout, cell.q)]",
        "starts = [child.condition(layout, 0.0 * cell.q)]",
        f"{TESTS}test_a_split_never_makes_the_bound_worse",
    ),
    Mutant(
        "cell-iterations-uncounted",
        "core/solve/search/cells.py",
        "self.loop.iterations += made",
        "self.loop.iterations += 0",
        f"{TESTS}test_sweeps_of_descents_count",
    ),
    Mutant(
        "entropy-of-parts-left-out",
        "core/solve/search/patches.py",
        "each += log_weighted(self.values) - log_weighted(old)",
        "each += 0.0",
        f"{PARTS}test_changes_are_those_of_the_free_energy",
    ),
    Mutant(
        "scopes-counted-twice",
        "core/solve/search/patches.py",
        "once = np.flatnonzero(leader == np.repeat(self.variables, count))",
        "once = np.arange(len(leader))",
        f"{PARTS}test_changes_are_those_of_the_free_energy",
    ),
    Mutant(
        "parts-that-touch-taken-together",
        "core/solve/search/patches.py",
        "settled[members] = settled[self.parts.neighbors(members)] = True",
        "settled[members] = True",
        f"{PARTS}test_the_best_combination_of_overlapping_parts",
    ),
    Mutant(
        "parts-leave-their-cell",
        "core/solve/search/patches.py",
        "allowed[self.entry_owner[(self.values > 0) & ~keep[self.entries]]] = False",
        "allowed[:] = True",
        f"{PARTS}test_weight_outside_of_a_cell_is_refused",
    ),
]
