"""Without PyTorch, or with an old one, there is one line with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from proxfield.errors import MissingDependencyError
from proxfield.torch import needs


class Old:
    __version__ = "2.3.1+cu121"


@pytest.mark.parametrize(("found", "what"), [(None, "needs PyTorch:"), (Old, "2.4 or later")])
def test_says_what_to_install(found: Any, what: str, monkeypatch: Any) -> None:
    import proxfield.torch as pt

    monkeypatch.setattr(needs, "torch", found)
    monkeypatch.delitem(vars(pt), "DenseCRF", raising=False)
    with pytest.raises(MissingDependencyError, match=what) as caught:
        pt.DenseCRF  # noqa: B018
    assert isinstance(caught.value, ImportError)
    assert 'pip install "proxfield[gpu]"' in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names() -> None:
    import proxfield.torch as pt

    assert not hasattr(pt, "nothing")
    assert "DenseCRF" in dir(pt)
