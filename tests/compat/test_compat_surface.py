"""Names, values and types that pydensecrf's users rely on."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

from proxfield.compat.pydensecrf import densecrf as dcrf
from proxfield.compat.pydensecrf import eigen, utils

ENUMS = {
    "KernelType": {"CONST_KERNEL": 0, "DIAG_KERNEL": 1, "FULL_KERNEL": 2},
    "NormalizationType": {
        "NO_NORMALIZATION": 0,
        "NORMALIZE_BEFORE": 1,
        "NORMALIZE_AFTER": 2,
        "NORMALIZE_SYMMETRIC": 3,
    },
}


@pytest.mark.parametrize("name", ENUMS)
def test_enums_and_their_members_at_module_level(name: str) -> None:
    kind = getattr(dcrf, name)
    assert {m.name: int(m) for m in kind} == ENUMS[name]
    assert all(getattr(dcrf, m.name) is m for m in kind)


SIGNATURES = {
    "setUnary": ["u"],
    "setUnaryEnergy": ["u", "f"],
    "addPairwiseEnergy": ["features", "compat", "kernel", "normalization"],
    "addPairwiseGaussian": ["sxy", "compat", "kernel", "normalization"],
    "addPairwiseBilateral": ["sxy", "srgb", "rgbim", "compat", "kernel", "normalization"],
    "inference": ["niter"],
    "startInference": [],
    "stepInference": ["Q", "tmp1", "tmp2"],
    "klDivergence": ["Q"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_methods_and_the_names_of_their_arguments(name: str) -> None:
    found = list(inspect.signature(getattr(dcrf.DenseCRF2D, name)).parameters)
    assert found == ["self", *SIGNATURES[name]]
    assert hasattr(dcrf.DenseCRF, name) == (name[-8:] not in ("Gaussian", "ilateral"))


UTILITIES = {
    "unary_from_labels": {"labels": ..., "n_labels": ..., "gt_prob": ..., "zero_unsure": True},
    "compute_unary": {"labels": ..., "M": ..., "GT_PROB": 0.5},
    "unary_from_softmax": {"sm": ..., "scale": None, "clip": 1e-5},
    "softmax_to_unary": {"sm": ..., "GT_PROB": 1},
    "create_pairwise_gaussian": {"sdims": ..., "shape": ...},
    "create_pairwise_bilateral": {"sdims": ..., "schan": ..., "img": ..., "chdim": -1},
    "_create_pairwise_gaussian_2d": {"sx": ..., "sy": ..., "shape": ...},
    "_create_pairwise_bilateral_2d": dict.fromkeys(["sx", "sy", "sr", "sg", "sb", "img"], ...),
}


@pytest.mark.parametrize("name", UTILITIES)
def test_utilities_and_their_defaults(name: str) -> None:
    found = inspect.signature(getattr(utils, name)).parameters
    empty = inspect.Parameter.empty
    assert {k: ... if p.default is empty else p.default for k, p in found.items()} == UTILITIES[
        name
    ]


def test_class_tree() -> None:
    assert issubclass(dcrf.DenseCRF2D, dcrf.DenseCRF)
    assert issubclass(dcrf.ConstUnary, dcrf.Unary)
    assert issubclass(dcrf.LogisticUnary, dcrf.Unary)


def test_more_arguments_are_ignored_and_left_to_subclasses() -> None:
    class Mine(dcrf.DenseCRF2D):
        def __init__(self, w: int, h: int, nlabels: int, name: str) -> None:
            self.name = name  # the original is set up without super().__init__ too

    crf = Mine(3, 2, 4, "a")
    assert crf.name == "a" and crf.inference(0).shape == (4, 6)
    assert dcrf.DenseCRF(3, 2, "x", 1).inference(0).shape == (2, 3)


# ---- matrices ----


def matrix() -> eigen.MatrixXf:
    return eigen.matrixXf(np.arange(6, dtype=np.float32).reshape(2, 3))


def test_a_matrix_is_a_writable_column_major_buffer_of_floats() -> None:
    view = memoryview(matrix())
    assert (view.format, view.shape, view.strides, view.readonly) == ("f", (2, 3), (4, 8), False)
    vector = memoryview(eigen.vectorXf(np.arange(3, dtype=np.float32)))
    assert (vector.format, vector.shape, vector.readonly) == ("f", (3,), False)


def test_asarray_is_a_live_view_and_array_is_a_copy() -> None:
    Q = matrix()
    live, copy = np.asarray(Q), np.array(Q)
    live[1, 2] = 9.0
    assert np.asarray(Q)[1, 2] == 9.0 and memoryview(Q)[1, 2] == 9.0 and copy[1, 2] == 5.0
    assert type(live) is type(copy) is np.ndarray
    assert live.dtype == np.float32 and live.flags.f_contiguous


def test_matrices_are_made_as_copies() -> None:
    given = np.zeros((2, 3), dtype=np.float32)
    np.asarray(eigen.matrixXf(given))[:] = 1.0
    np.asarray(eigen.vectorXf(given[0]))[:] = 1.0
    assert not given.any()


def test_matrices_by_their_size() -> None:
    assert np.array(eigen.MatrixXf()).shape == (0, 0)
    assert np.array(eigen.VectorXf()).shape == (0,)
    assert memoryview(eigen.MatrixXf(2, 3)).strides == (4, 8)
    assert memoryview(eigen.VectorXf(3)).shape == (3,)


def test_what_is_computed_from_a_matrix_is_a_plain_array() -> None:
    Q = matrix()
    results = [np.argmax(Q, axis=0), Q.argmax(axis=0), Q + 1, np.exp(Q), Q[0], Q.T, Q.reshape(-1)]
    results += [np.concatenate([Q, Q]), Q.copy(), np.add(Q, Q), Q @ Q.T, np.where(Q > 1, Q, 0)]
    assert {type(r) for r in results} == {np.ndarray}
    np.testing.assert_array_equal(results[0], [1, 1, 1])
    np.testing.assert_array_equal(np.concatenate([Q, Q])[2], [0, 1, 2])
    assert len(Q) == 2 and Q.shape == (2, 3)
    assert type(pickle.loads(pickle.dumps(results[0]))) is np.ndarray


def test_a_matrix_changed_in_place_stays_a_matrix() -> None:
    Q = same = matrix()
    Q *= 2
    Q[0, 0] = 7
    assert Q is same and type(Q) is eigen.MatrixXf
    np.testing.assert_array_equal(np.array(Q), [[7, 2, 4], [6, 8, 10]])
