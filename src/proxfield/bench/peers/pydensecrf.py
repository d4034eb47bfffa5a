"""pydensecrf, through its fork pydensecrf2: dense CRFs of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.bench.peers.base import Answer, Peer, Question, Run
from proxfield.bench.peers.scenes import UPDATES


class Pydensecrf(Peer):
    """Mean field with a permutohedral lattice, in C++."""

    name = "pydensecrf"
    tasks = (Question.DENSE,)
    method = "mean field, permutohedral lattice"
    package = "pydensecrf2"
    module = "pydensecrf"
    install = "pip install pydensecrf2"

    def prepare(self, task: Question, problem: Any, budget: float) -> Run:
        from pydensecrf import densecrf

        height, width, n_labels = problem.probabilities.shape
        energies = -np.log(np.maximum(problem.probabilities, problem.settings["clip"]))
        energies = energies.reshape(-1, n_labels).T.astype(np.float32)
        energies, image = np.ascontiguousarray(energies), np.ascontiguousarray(problem.image)
        s = problem.settings

        def run() -> Answer:
            crf = densecrf.DenseCRF2D(width, height, n_labels)
            crf.setUnaryEnergy(energies)
            crf.addPairwiseGaussian(s["spatial_sigma"], s["spatial_weight"])
            crf.addPairwiseBilateral(
                s["bilateral_sigma"], s["bilateral_color"], image, s["bilateral_weight"]
            )
            q = np.array(crf.inference(UPDATES))
            return Answer(labels=q.argmax(axis=0).reshape(height, width))

        return run
