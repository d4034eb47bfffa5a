"""Faults in lowering, propagation, files, filters, dispatch, kinds and the torch layer."""

from __future__ import annotations

from mutant import Mutant

LOWERING = [
    Mutant(
        "tables-not-flipped",
        "core/lowering/builder.py",
        "flipped = np.swapaxes(tables, 1, 2)",
        "flipped = tables.reshape(len(tables), *tables.shape[:0:-1])",
        "lowering/test_lowering.py::test_exact_on_every_labelling",
    ),
    Mutant(
        "potts-constant-of-spins",
        "core/lowering/builder.py",
        "self.constant += 0.5 * float(weights.sum())",
        "self.constant += 0.0 * float(weights.sum())",
        "lowering/test_lowering.py::test_potts_between_binary_variables_becomes_ising",
    ),
    Mutant(
        "energy-of-decided-labels-lost",
        "core/lowering/builder.py",
        "self.constant += float(energies[decided].sum())",
        "self.constant += 0.0 * float(energies[decided].sum())",
        "lowering/test_lowering.py::test_exact_on_every_labelling "
        "lowering/test_lowering.py::test_exact_with_impossible_labels_and_tables",
    ),
    Mutant(
        "recognized-potts-keeps-its-diagonal",
        "core/lowering/builder.py",
        "off[which] - on[which]",
        "off[which]",
        "lowering/test_lowering.py::test_potts_tables_are_recognized",
    ),
    Mutant(
        "repelling-edges-dropped",
        "core/lowering/merging.py",
        "some = weights != 0",
        "some = weights > 0",
        "lowering/test_lowering.py::test_merge_edges "
        "lowering/test_merging.py::test_edges_merge_to_the_bit",
    ),
    Mutant(
        "minus-zero-is-another-table",
        "core/lowering/merging.py",
        "np.ascontiguousarray(flat[rows] + 0.0)",
        "np.ascontiguousarray(flat[rows])",
        "lowering/test_lowering.py::test_deduplicate_knows_minus_zero_and_infinity",
    ),
    Mutant(
        "parallel-edges-in-any-order",
        "core/lowering/merging.py",
        "if not (keys[1:] > keys[:-1]).all():",
        "if not (keys[1:] >= keys[:-1]).all():",
        "lowering/test_lowering.py::test_parallel_edges_merge "
        "lowering/test_merging.py::test_edges_merge_to_the_bit",
    ),
    Mutant(
        "penalty-below-the-worst",
        "core/lowering/lowered.py",
        "worst + penalty",
        "penalty",
        "lowering/test_lowering.py::test_softening_changes_only_what_is_forbidden",
    ),
    Mutant(
        "decided-variables-have-no-weight",
        "core/lowering/reduction.py",
        "np.where(self.keep & (self.counts == 1)[self.full.owner], 1.0, 0.0)",
        "np.zeros(self.full.size)",
        "lowering/test_lowering.py::test_reduction_round_trip",
    ),
    Mutant(
        "labels-not-renumbered",
        "core/lowering/reduction.py",
        "first[self.free] = self.full.label[flat[self.layout.offsets[:-1] + labels]]",
        "first[self.free] = labels",
        "lowering/test_lowering.py::test_reduction_round_trip",
    ),
    Mutant(
        "weightless-variables-not-uniform",
        "core/lowering/reduction.py",
        "np.where(dead[self.layout.owner], 1.0, out)",
        "np.where(dead[self.layout.owner], 1.0 + self.layout.label, out)",
        "lowering/test_lowering.py::test_restrict_starts_uniform_where_nothing_is_left",
    ),
]

ZEROS = [
    Mutant(
        "evidence-rules-nothing-out",
        "core/lowering/reduction.py",
        "keep[(evidence >= 0)[layout.owner]] = False",
        "pass",
        "lowering/test_lowering.py::test_evidence_takes_variables_out",
    ),
    Mutant(
        "propagation-only-looks-back",
        "core/lowering/reduction.py",
        "if g != cause)",
        "if g == cause)",
        "lowering/test_zeros.py::test_long_chains_are_decided",
    ),
    Mutant(
        "bits-in-the-other-order",
        "core/lowering/reduction.py",
        'bitorder="little"',
        'bitorder="big"',
        "lowering/test_zeros.py::test_bits",
    ),
    Mutant(
        "own-terms-prune-without-tables",
        "core/lowering/reduction.py",
        "    while sum(term.prune(layout, keep) for term in others):\n        propagation.run()\n",
        "",
        "lowering/test_zeros.py::test_a_term_of_a_users_own_takes_part",
    ),
    Mutant(
        "support-needs-no-possible-labels",
        "core/terms/factor.py",
        "allowed &= keep[at].reshape(shape)",
        "allowed &= allowed | keep[at].reshape(shape)",
        "lowering/test_zeros.py::test_same_fixed_point_as_the_plain_way",
    ),
]

FILES = [
    Mutant(
        "evidence-of-one-variable-not-saved",
        "io/store.py",
        "    if len(seen):\n",
        "    if len(seen) > 1:\n",
        "io/test_io_store.py::test_fields_come_back_in_every_bit",
    ),
    Mutant(
        "members-of-a-trace-mixed-up",
        "io/store.py",
        'str(about["members"][k])',
        'str(about["members"][0])',
        "io/test_io_store.py::test_results_come_back_in_every_bit",
    ),
    Mutant(
        "feasible-labelling-not-saved",
        "io/store.py",
        "if result.feasible is not None:",
        "if result.feasible is None and False:",
        "io/test_io_store.py::test_results_come_back_in_every_bit",
    ),
    Mutant(
        "newer-versions-read",
        "io/store.py",
        "version > VERSION:",
        "version > VERSION + 1:",
        "io/test_io_damage.py::test_hostile_files_are_refused",
    ),
    Mutant(
        "other-arrays-accepted",
        "io/store.py",
        'if {"header", *header["arrays"]} != names:',
        'if not {"header", *header["arrays"]}:',
        "io/test_io_damage.py::test_arrays_must_be_those_of_the_header",
    ),
    Mutant(
        "pickles-are-read",
        "io/windows.py",
        "read_array(member, allow_pickle=False)",
        "read_array(member, allow_pickle=True)",
        "io/test_io_damage.py::test_nothing_is_unpickled",
    ),
    Mutant(
        "subclasses-saved-as-their-base",
        "core/terms/registry.py",
        "KINDS.name_of(type(term))",
        "next((k for k, cls in KINDS.items() if isinstance(term, cls)), None)",
        "io/test_io_store.py::test_subclasses_are_not_saved_as_what_they_extend",
    ),
    Mutant(
        "evidence-base-ignored",
        "io/results.py",
        "astype(np.int64) - base",
        "astype(np.int64) - 0 * base",
        "io/test_io_evidence.py::test_counting_from_one",
    ),
    Mutant(
        "one-label-too-many",
        "io/results.py",
        "top = counts[variables] - 1",
        "top = counts[variables]",
        "io/test_io_evidence.py::test_mistakes",
    ),
    Mutant(
        "contradicting-evidence-accepted",
        "io/results.py",
        "if evidence.setdefault(variable, label) != label:",
        "if evidence.setdefault(variable, label) < 0:",
        "io/test_io_evidence.py::test_mistakes",
    ),
    Mutant(
        "first-labels-not-written",
        "io/results.py",
        "if x != -1]",
        "if x > 0]",
        "io/test_io_evidence.py::test_round_trip io/test_io_evidence.py::test_text_is_sorted",
    ),
    Mutant(
        "decimal-point-misplaced",
        "io/tokens.py",
        "decimals = length - 1 - point",
        "decimals = length - point",
        "io/test_io_model.py::test_numbers_are_rounded_like_float",
    ),
    Mutant(
        "two-points-are-a-number",
        "io/tokens.py",
        "hard[owner[1:][owner[1:] == owner[:-1]]] = True",
        "hard[owner[1:][owner[1:] == owner[:-1]]] |= False",
        "io/test_io_model.py::test_mistakes "
        "io/test_io_model.py::test_same_numbers_as_float_or_an_error",
    ),
    Mutant(
        "pairs-of-one-variable-accepted",
        "io/uai.py",
        "if scopes.shape[1] < 2:",
        "if scopes.shape[1] < 3:",
        "io/test_io_model.py::test_mistakes",
    ),
    Mutant(
        "numbers-after-the-end-accepted",
        "io/uai.py",
        "if end < tokens.count:",
        "if end > tokens.count:",
        "io/test_io_model.py::test_mistakes",
    ),
    Mutant(
        "negative-entries-accepted",
        "io/uai.py",
        "values.min() >= 0 and",
        "values.min() >= -9e9 and",
        "io/test_io_model.py::test_mistakes",
    ),
    Mutant(
        "energies-of-the-wrong-sign",
        "io/uai.py",
        "energies = -np.log(model.values) + 0.0",
        "energies = np.log(model.values) + 0.0",
        "io/test_io_write.py::test_round_trip_of_random_models",
    ),
]

FILTERS = [
    Mutant(
        "lattice-too-coarse",
        "core/filters/geometry.py",
        "(4 * self.share(d) + 2 * self.middle_share(d) + 1 / 6)",
        "(2 * self.share(d) + 1 / 6)",
        "filters/test_lattice.py::test_close_to_the_exact_filter_on_a_picture",
    ),
    Mutant(
        "lattice-too-weak",
        "core/filters/geometry.py",
        "* np.sqrt(d + 1))",
        "* 1.0)",
        "filters/test_lattice.py::test_total_weight_is_that_of_the_gaussian",
    ),
    Mutant(
        "blur-not-mirrored",
        "core/filters/lattice.py",
        "np.array([*reversed(axes), *axes])",
        "np.array([*axes, *axes])",
        "filters/test_lattice.py::test_kernels_multiply_with_the_reference_matrix "
        "filters/test_lattice.py::test_symmetric_without_negative_entries_or_eigenvalues",
    ),
    Mutant(
        "star-without-its-middle",
        "core/filters/lattice.py",
        "self.more = 0.5 - 2 * self.middle",
        "self.more = 0.5 - self.middle",
        "filters/test_lattice.py::test_kernels_multiply_with_the_reference_matrix",
    ),
    Mutant(
        "stars-for-all-points",
        "core/filters/geometry.py",
        "if visits <= max(",
        "if visits > max(",
        "filters/test_lattice.py::test_the_blur_depends_on_how_sparse_points_are",
    ),
    Mutant(
        "rows-that-do-not-fill-an-image",
        "core/filters/lattice.py",
        "1 < width < n and n % width == 0 and",
        "1 < width < n and",
        "filters/test_lattice.py::test_other_points_are_not_an_image",
    ),
    Mutant(
        "self-message-counted-twice",
        "core/filters/operator.py",
        "else out - cast(self.own, values) * values",
        "else out + cast(self.own, values) * values",
        "terms/test_gaussian.py::test_gradient_by_its_definition",
    ),
    Mutant(
        "normalized-by-the-whole-mass",
        "core/filters/operator.py",
        "else rsqrt(self.mass)",
        "else 1.0 / self.mass",
        "terms/test_gaussian.py::test_energy_of_labellings_is_the_sum_over_pairs",
    ),
]

DISPATCH = [
    Mutant(
        "overrides-ignored",
        "core/engines/terms.py",
        "if not all(own):",
        "if not entry:",
        "backends/test_dispatch.py::test_what_an_implementation_replaces_can_be_said",
    ),
    Mutant(
        "declined-terms-implemented",
        "core/engines/terms.py",
        "return maker if accepts is None or accepts(term) else None",
        "return maker",
        "backends/test_dispatch.py::test_an_implementation_may_decline",
    ),
    Mutant(
        "the-most-general-class-wins",
        "core/engines/terms.py",
        "for base in kind.__mro__:",
        "for base in reversed(kind.__mro__):",
        "backends/test_dispatch.py::test_the_most_specific_class_wins",
    ),
    Mutant(
        "inherited-lowering-speaks-for-overrides",
        "core/terms/base.py",
        "return all(same)",
        "return any(same)",
        "backends/test_dispatch.py::test_an_inherited_lowering_does_not_speak_for_an_override",
    ),
    Mutant(
        "mean-kind-moves-theta",
        "core/engines/plan.py",
        "MEAN = 1, 0, Space.MEAN",
        "MEAN = 1, 0, Space.NATURAL",
        "rules/test_kinds.py::test_what_kinds_say",
    ),
    Mutant(
        "momentum-keeps-nothing",
        "core/engines/plan.py",
        "MOMENTUM = 2, 1",
        "MOMENTUM = 2, 0",
        "rules/test_kinds.py::test_what_kinds_say",
    ),
    Mutant(
        "one-full-step-is-all",
        "core/engines/plan.py",
        "(self.step == 1.0).all()",
        "(self.step == 1.0).any()",
        "rules/test_kinds.py::test_full_steps",
    ),
]

COMPILED = [  # few: kernels have to be compiled again
    Mutant(
        "compiled-momentum-without-weight",
        "core/engines/numba/kinds.py",
        "u[at] = g1 * u[at] + (1.0 - g1) * (t - target)",
        "u[at] = g1 * u[at] + (t - target)",
        "rules/test_kinds.py::test_every_backend_has_every_kind[2-binary-cpu]",
    ),
    Mutant(
        "compiled-energy-of-spins-doubled",
        "core/engines/numba/binary.py",
        "                energy += mine[k] * (np.float64(bias[k]) + total)\n"
        "            return 0.5 * energy",
        "                energy += mine[k] * (np.float64(bias[k]) + total)\n"
        "            return energy",
        "inference/test_infer.py::test_spins_of_a_grid_have_the_energy_of_the_reference",
    ),
]

LAYER = [
    Mutant(
        "layer-logits-as-energies",
        "torch/layer.py",
        "unary = -x\n",
        "unary = x\n",
        "torch_layer/test_torch_layer.py::test_same_marginals_as_the_field",
        needs_torch=True,
    ),
    Mutant(
        "layer-compatibility-not-symmetrized",
        "torch/layer.py",
        "0.5 * (self.compatibility + self.compatibility.T)",
        "self.compatibility",
        "torch_layer/test_torch_layer.py::test_compatibilities_are_symmetrized",
        needs_torch=True,
    ),
    Mutant(
        "layer-adjoint-not-solved",
        "torch/solve.py",
        'return grad - x, ""',
        'return grad, ""',
        "torch_layer/test_torch_layer.py::test_implicit_equals_unrolled_at_convergence",
        needs_torch=True,
    ),
    Mutant(
        "layer-covariance-without-mean",
        "torch/solve.py",
        "return q * (x - (q * x).sum(dim=-1, keepdim=True))",
        "return q * x",
        "torch_layer/test_torch_layer.py::test_implicit_equals_unrolled_at_convergence",
        needs_torch=True,
    ),
]

MUTANTS = [*LOWERING, *ZEROS, *FILES, *FILTERS, *DISPATCH, *COMPILED, *LAYER]
