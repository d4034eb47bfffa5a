"""The constants of the searches: what each is, how it was chosen, what it is sensitive to.

All were set by hand, as round numbers, while `benchmarks/auto_search.py` (F), `map_peers.py`
(energies) and `modes.py` (bounds) were watched; none is the result of an optimization. Where
something else decided, the line says so. *Gain* is what a search wins over a plain descent (modes:
over one mode). Percentages say how much of it is lost (+) or won (−) where a constant is halved /
doubled: `benchmarks/search_constants.py`, 8 kinds of fields, 3 seeds, limits in iterations. Up to
5 % is within the noise of the seeds; 0 mostly means that no run changed. What is a duration matters
with a budget only; it was timed on one machine.

A temperature is in units of the field's own scale: for F the mean of the λ_i, for energies
`interaction_scale`, a typical critical temperature. What options gain (moves, lengths,
temperatures, origins) is learned; the weights say how often each is drawn at first.
"""

# ---- all searches ----

CHAINS_PER_ROUND = 4
"""Chains of a round where iterations alone are limited. auto: −6 / +1 %; map: 0 / +1 %."""
STALL_SWEEPS = 5000
"""Sweeps without a gain after which a search without any limit may end. Bounds the time alone."""
SLICE_VISITS = 5e6
"""Entries and edge ends visited between two looks at the callback and Ctrl-C where only iterations
are limited: some 20 ms. Results of auto depend on it on large fields, since a cooling is cut."""
PART_CHANGE, PATCH_CHANGE = 0.1, 0.2
"""Marginals that differ by more belong to a part in which two states differ; the rest is left to
sweeps. 0 / 0 %; modes compare chains that are further from a minimum: +2 / −1 %."""
EVALUATIONS_PER_SWEEP = 4
"""Evaluations of F that take as long as a sweep of one thread: a duration."""
LARGE_SIZE, VISIT_SECONDS = 100_000, 1.5e-8
"""Above so many entries evaluations run on all threads while a chain runs on one: the duration of a
sweep is then estimated from the entries and edge ends that it visits. Timed on grids."""

# ---- auto: a low minimum of F ----

DEFAULT_VISITS = 1e8
"""Entries and edge ends to visit where the user sets no limit: some tenths of a second."""
MIN_SWEEPS = 8
"""With time for fewer than four times these sweeps, exploring is pointless."""
HARD_SCALE = 10.0
"""Temperature scale where forbidden configurations leave the curvature infinite. A guess."""
HOT_SHARE, COLD_SHARE = 0.3, 0.01
"""Temperatures of the first cooling, at its begin (at least 1) and its end (at most 1): colder than
F itself (T = 1), so that sweeps descend from the middle of a minimum. +1 / −2 %; +2 / −5 %."""
REHEAT_SHARES = {0.03: 1.0, 0.06: 1.0, 0.12: 2.0, 0.2: 2.0, 0.35: 1.0, 0.7: 0.5}
"""Temperatures to reheat to: from one that changes little to one that forgets the state."""
CHAIN_SWEEPS = {10: 0.5, 30: 1.0, 100: 2.0, 300: 2.0, 1000: 1.0}
"""Sweeps of a reheat."""
MOVES = {"sites": 2.0, "forests": 1.0, "cooled": 0.3}
"""How chains move: they sample one label after another, or a whole forest at a time, or cool
marginals without sampling."""
ORIGINS = {"best": 2.0, "start": 1.0, "labels": 0.5}
"""Where chains begin: at the best state, afresh, or (on flat fields) at the lowest labelling."""
MEMORY, CURIOSITY = 0.97, 0.25
"""Weight of what options gained before, at each reheat, and share of the draws that don't look at
it. 0 / 0 %; +1 / 0 %: first weights matter more."""
MANY_PARTS = 8.0
"""Parts of a reheat, on average, from which on chains don't begin afresh: each place of such a
field is improved by itself. 0 / 0 %."""
COOLING_SWEEPS, COOLING_SHARES = 300, (0.1, 0.7)
"""Sweeps of the first cooling, if they are between these shares of what is left. −1 / +2 %."""
MIN_COOLING = 5.0
"""Sweeps that must fit for a cooling on all threads; half of them for one at all."""
REHEAT_POLISH = (3, 20)
"""Sweeps that end a reheat, at least and at most: a twentieth of its own. 0 / −2 %."""
PLAIN_SHARE = 0.1
"""Most of what is left for sweeps from the start (without a budget, twice as much). 0 / 0 %."""
CHAIN_SECONDS = 0.2
"""Maximum duration of a reheat, which isn't cut into slices: Ctrl-C waits as long."""
FLAT_GAIN, FLAT_VARIABLES = 0.02, 1000
"""Flat fields: F falls by at most so much per variable from plain sweeps to the first cooling, and
there are so many variables at least. From a decision tree field, on which adam finds lower F."""
LABELLED_SWEEPS = 100
"""Sweeps of chains from which on the energy of their labelling is looked at there."""
RIVALS = {"adam": 0.4, "momentum": 0.15}
"""Rules that compete with chains there, each with its share of what is left, ..."""
RIVAL_ITERATIONS = 800
"""... and iterations that must fit into it: fewer don't converge."""
POLISH_SWEEPS, END_SWEEPS = 30, 200
"""Maximum number of sweeps from the start and at the end of the cooling; and from the best state of
all, before its convergence is tested. −1 / 0 %; 0 / 0 %."""
END_SHARE = 0.2
"""Maximum share of the budget that is kept for the end."""
GRACE_SECONDS = 0.002
"""What the end may take beyond a budget that is used up."""
ENOUGH_SWEEPS = 2.0
"""Sweeps that must fit into the budget for a search."""
SLICE_SECONDS, MIN_SLICE = 0.05, 40
"""Aim of a slice of the cooling, which has four slices or more of at least so many sweeps, except
on large fields. A duration between two looks at the clock."""
ROUND_SECONDS, ROUND_SHARE = 0.02, 0.02
"""Short reheats are made several in a round: so many seconds, or this share of the budget."""
SWEEP_EVALUATIONS = 12.0
"""Duration of a sweep in evaluations of F, before one has been timed: rather too long."""
PREPARING_SHARE = 0.05
"""Share of what is left that preparing something may take; otherwise there is none of it."""
PART_SECONDS, FOREST_SECONDS = 1.5e-8, 1e-7
"""Seconds per visit to prepare comparing part by part, and moves by forests. Timed."""

# ---- solve_map: a low energy ----

FIRST_HEAT, COLD = 1.2, 0.15
"""Temperatures of the first cooling, at its begin and at its end: above the critical temperature,
where labels are nearly free, and well below it. −4 / −5 %; −3 / −2 %."""
REHEATS = (0.2, 0.3, 0.45, 0.65, 1.0, 1.5)
"""Temperatures that rounds start at."""
MAP_MEMORY, MAP_CURIOSITY, SHARPNESS = 0.9, 0.2, 4.0
"""What is learned of them: the weight of earlier rounds (of `CHAINS_PER_ROUND` outcomes or more, so
that 0.9 forgets like 0.97 per outcome), the share drawn at random, and the power of the gain per
sweep that the others are drawn by: the best is worth most of the time. 0 / 0 % each."""
ZERO, ZERO_SWEEPS = 1e-12, 3
"""Temperature of the last sweeps of a cooling, where each variable takes its cheapest label, and
their number. −1 / −5 %."""
FIRST_SWEEPS = (10, 300)
"""Least sweeps of the first cooling; sweeps that may take half of the limits."""
FIRST_LIMITS = (0.4, 1000), (0.9, 15_000)
"""Share of the limits for the first cooling, and most sweeps: usually, and on fields where chains
don't move by forests and unary energies, which are apart by less than the unit of temperatures,
don't guide them. There, rounds change few places at a time, and one long cooling finds more
(spin glasses and cubic grids of `benchmarks/map_peers.py`)."""
FOREST_DEGREE = 5.0
"""Neighbors per variable up to which chains move by forests, which hold most variables then.
+16 / 0 %: without forests, sparse fields lose most."""
ROUND_SWEEPS = 100
"""Sweeps of a round, at first. 0 / +1 %."""
LONGEST_SHARE = 0.2
"""Share of what is left of the limits for one round. +2 / −2 %."""
QUIET_ROUNDS = 10
"""Chains without a gain after which rounds get twice as long, or a search from another start ends.
−4 / −2 %."""
ANEW_SWEEPS = 3000
"""Sweeps of short coolings of random labellings before a search from another start. 0 / 0 %."""
RELABELLED_SWEEPS, RELABELLED_HEATS = 100, 3
"""Sweeps after each round from labellings in which a region has another label, where there are more
than two; and how many of `REHEATS` these start at. 0 / 0 %; 0 / 0 %."""
FLIP_SHARE = 0.05
"""Share of edge ends that a sweep near temperature 0 reads: those of variables that change."""
MAP_VISITS = 2e8
"""Entries and edge ends to visit where the user sets no limit: a second or two."""
PLAIN_VISITS, PLAIN_CALL = 1e9, 15_000
"""The same where chains compute whole gradients, and visits as long as calling one per label."""
REPORT_SECONDS = 0.05
"""Time between two calls of the callback."""
OPENING_SWEEPS = 10
"""Sweeps that must fit into a budget for a cooling to pay, and the shortest one. −3 / −5 %."""
MAP_SWEEP_EVALUATIONS = 3
"""Evaluations of F that take as long as a sweep near temperature 0, before one has been timed."""
FIRST_SHARE, REPAIR_SHARE = 0.5, 0.5
"""Where configurations are forbidden: share of the limits for the search before repair and
backtracking, and share of what is then left of the budget for these."""

# ---- modes: a mixture of low F; its gain is a few nats, and up to 15 % is within the noise ----

SEARCH_SHARE, SAMPLE_SHARE, REFINE_SHARE, SPLIT_SHARE, CELL_SHARE = 0.4, 0.55, 0.65, 0.85, 0.93
"""Shares of the limits at which stages end: the search of the whole field, chains from the start,
looking for alternatives, splitting, the search of cells. The first: +10 / +39 %."""
OVERTIME = 1.03
"""Share of the budget at which the last polish ends; a few sweeps are worth a little overtime."""
SWEEPS_PER_MODE = 50
"""Sweeps per mode below which the search of the whole field gets a larger share. 0 / 0 %."""
SAMPLE_SWEEPS, SAMPLE_HEAT = (10, 30, 100), (0.1, 0.3, 1.0)
"""Lengths and temperatures of chains from the start."""
SAMPLE_CHAINS, MAX_SAMPLES = 8, 256
"""Maximum number of such chains per round and in all. −17 / 0 %; 0 / 0 %."""
CONVEX_SCALE = 2.0
"""Curvature up to which F is convex, so that there is one minimum: proved, not tuned."""
MIN_SHARE = 1e-9
"""Share of the mixture below which a split isn't worth its time."""
MIN_CELL_SWEEPS = 64
"""Sweeps that there must be for each cell for a search to pay. +1 / 0 %."""
TRIAL_SWEEPS, TRIAL_TOL = 30, 1e-4
"""A descent before the last polish has so many sweeps at most, and ends when no marginal changes by
more than this. −14 / −9 %; 0 / −7 %."""
MAX_ONE_THREAD = 1 << 14
"""Entries up to which descents, which are short, run on one thread: others start too slowly."""
MAX_STATES, MAX_POOL_ENTRIES = 128, 1 << 19
"""Most states in a pool, and entries and edge ends of all: memory and time to compare. 0 / 0 %."""
MIN_DISTANCE = 0.05
"""Share of the variables in which states of the pool's more diverse half differ. 0 / 0 %."""
MAX_TRIALS, MAX_UNCERTAIN = 8, 3
"""Maximum number of decisions that are tried to split a cell, and how many of them are kept for
variables of large variance. +1 / 0 %; 0 / +1 %."""
TRIAL_DESCENTS = 3
"""Descents of a trial: two children, one of which has two starts."""
MAX_CURVATURE = 4.0
"""A variable depends on others as much as it can from this curvature bound on. 0 / 0 %."""
MAX_REFINEMENTS, MAX_OVERLAP = 24, 0.5
"""Maximum number of alternatives that are improved, and the share of variables that two of these
may have in common. 0 / 0 %; −3 / −1 %."""
MAX_COMBINATIONS, MAX_COMPARISONS, MAX_NEW_PATCHES = 8, 4, 128
"""Maximum number of times in a row that patches are put into a state and that a state is compared
with the pool, and of patches that a comparison adds. 0 / 0 % each."""
ENTRY_SECONDS = 1e-7
"""Guess of the time that comparing takes, per entry and end of an edge, before it was timed."""
WORTH_SCALE = 10.0
"""A rise of F by this much makes a patch worth a third of what it would be without. −7 / 0 %."""
MAX_LOOKUP = 1 << 22
"""Patches times variables up to which there is a table of both: 32 MB."""
MIN_GAIN = 1e-6
"""Fall of F below which a patch isn't worth taking: above rounding. 0 / 0 %."""
