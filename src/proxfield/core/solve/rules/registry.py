"""The rules by name. A new rule is one class (in `parallel` or its own file) and one line here."""

from __future__ import annotations

from dataclasses import fields

from proxfield.core.common.records import Record
from proxfield.core.common.registry import Registry
from proxfield.core.solve.rules.base import Rule
from proxfield.errors import InputError, shown

RULES: Registry[type[Rule]] = Registry(
    {
        "sweep": "schedules:Sweep",
        "colored": "schedules:Colored",
        "full-parallel": "parallel:FullParallel",
        "adhoc": "parallel:AdHoc",
        "fixed": "parallel:Fixed",
        "adaptive": "parallel:Adaptive",
        "backtracking": "backtracking:Backtracking",
        "momentum": "parallel:Momentum",
        "adam": "parallel:Adam",
        "anneal": "anneal:Anneal",
        "restarts": "portfolio:Restarts",
        "portfolio": "portfolio:Portfolio",
        "auto": "auto:Auto",
    },
    package="proxfield.core.solve.rules",
)


def dense_rules() -> dict[str, type[Rule]]:
    """The rules that run on dense fields with their default parameters."""
    return {name: rule for name, rule in RULES.items() if rule().suits_dense_fields}


def make_rule(rule: str | Rule | type[Rule], params: Record | None = None) -> Rule:
    """A rule from its name (or class) and parameters; a rule is returned as it is.

    Example:
        >>> make_rule("momentum", {"gamma": 0.9}).params["gamma"]
        0.9
    """
    if isinstance(rule, Rule):
        if params:
            raise InputError(
                "parameters go with a rule's name, not with a rule that has them already"
            )
        return rule
    if isinstance(rule, str):
        if rule not in RULES:
            raise InputError(f"unknown rule {shown(rule)}, expected one of: {', '.join(RULES)}")
        rule = RULES[rule]
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise InputError(f"rule={shown(rule)}, expected a name, a rule or its class")
    known = {f.name for f in fields(rule)}
    for key in params or {}:
        if key not in known:
            expected = f"expected one of: {', '.join(sorted(known))}" if known else "it has none"
            raise InputError(f"{rule.name} has no parameter {shown(key)}, {expected}")
    return rule(**(params or {}))
