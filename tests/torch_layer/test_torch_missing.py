"""Without PyTorch, or with an old one, there is one line with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from proxfield.core.devices import cuda as backend
from proxfield.errors import MissingDependencyError


class Old:
    __version__ = "2.3.1+cu121"


@pytest.mark.parametrize(
    ("found", "what", "remedy"),
    [
        (None, "proxfield.torch needs torch:", 'pip install "proxfield[gpu]"'),
        (Old, "needs 2.4 or newer", 'pip install --upgrade "torch>=2.4"'),
    ],
)
def test_says_what_to_install(found: Any, what: str, remedy: str, monkeypatch: Any) -> None:
    import proxfield.torch as pt

    monkeypatch.setattr(backend, "torch", found)
    monkeypatch.delitem(vars(pt), "DenseCRF", raising=False)
    with pytest.raises(MissingDependencyError, match=what) as caught:
        pt.DenseCRF  # noqa: B018
    with pytest.raises(MissingDependencyError, match=what):
        backend.need_torch()
    assert isinstance(caught.value, ImportError)
    assert str(caught.value).endswith(remedy)
    assert "\n" not in str(caught.value)


def test_unknown_names() -> None:
    import proxfield.torch as pt

    assert not hasattr(pt, "nothing")
    assert "DenseCRF" in dir(pt)
