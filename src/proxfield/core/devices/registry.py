"""The kinds of devices by name.

A new kind is one module and one entry here; nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module

from proxfield.core.devices.base import Device, unknown

DEVICES: dict[str, str] = {
    "cpu": "proxfield.core.devices.cpu:CpuDevice",
    "cuda": "proxfield.core.devices.cuda:CudaDevice",
}


def kind_of(kind: str) -> type[Device]:
    """The class of a kind of device."""
    module, _, name = DEVICES[kind].partition(":")
    found: type[Device] = getattr(import_module(module), name)
    return found


def find(name: str, *, any_of_torch: bool = False) -> Device:
    """A device by name. Whether it can be used is not asked yet.

    Args:
        name: "cpu", "cuda", "cuda:1" and the like.
        any_of_torch: Leave names that aren't in `DEVICES` to torch.

    Example:
        >>> find("cpu")
        CpuDevice('cpu')
    """
    kind = name.partition(":")[0]
    if kind in DEVICES:
        return kind_of(kind)(name)
    if any_of_torch and kind:
        from proxfield.core.devices.other import OtherDevice

        return OtherDevice(name)
    raise unknown(name, expected_names())


def expected_names() -> str:
    """The names of all devices, for messages.

    Example:
        >>> expected_names()
        'cpu, cuda or cuda:N'
    """
    names = []
    for kind in DEVICES:
        names += [kind, f"{kind}:N"] if kind_of(kind).numbered else [kind]
    return f"{', '.join(names[:-1])} or {names[-1]}"
