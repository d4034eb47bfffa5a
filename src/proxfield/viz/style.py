"""How each rule looks in every picture: one place for colors, dashes and names.

Colors differ in lightness as well as in hue, dashes set the baselines apart, and each color
has a lighter twin for dark backgrounds. Needs nothing beyond the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass

INK, SOFT, GRID = "#1B1F24", "#59636E", "#D9DEE4"
"""Text, notes and grid lines of pictures and pages on a light background."""


@dataclass(frozen=True)
class RuleStyle:
    """The look of one rule.

    Attributes:
        color: On a light background.
        dark: On a dark background.
        dash: "solid", "dash", "dot" or "dashdot"; see `line_style`.
        width: Width of the line, in points.
        paper_name: What the paper calls the rule, if it has it.
    """

    color: str
    dark: str
    dash: str = "solid"
    width: float = 1.8
    paper_name: str | None = None

    @property
    def line_style(self) -> tuple[int, tuple[float, ...]] | str:
        """The dash in matplotlib's words."""
        patterns: dict[str, tuple[float, ...]] = {
            "dash": (4, 1.5),
            "dot": (1, 1.2),
            "dashdot": (5, 1.5, 1, 1.5),
        }
        return "-" if self.dash == "solid" else (0, patterns[self.dash])


# Okabe and Ito's colors where they are dark enough for lines on white.
RULE_STYLES: dict[str, RuleStyle] = {
    "sweep": RuleStyle("#6E6E6E", "#B4B4B4", "dash", paper_name="SWEEP"),
    "colored": RuleStyle("#6E6E6E", "#B4B4B4", "dashdot"),
    "full-parallel": RuleStyle("#D55E00", "#FF9248", "dot", paper_name="FULL-PARALLEL"),
    "adhoc": RuleStyle("#C08400", "#F2BE3E", "dash", paper_name="ADHOC"),
    "fixed": RuleStyle("#0072B2", "#5AB4F0", paper_name="OURS-FIXED"),
    "adaptive": RuleStyle("#009E73", "#3FD6A8", paper_name="OURS-ADAPTIVE"),
    "momentum": RuleStyle("#B8438C", "#F29BCB", paper_name="OURS-MOMENTUM"),
    "adam": RuleStyle("#8B5E3C", "#D6A67F", paper_name="OURS-ADAM"),
    "backtracking": RuleStyle("#2F6F3E", "#84D696"),
    "original": RuleStyle("#A6322C", "#FF8E86", "dashdot"),
    "anneal": RuleStyle("#5B4BB5", "#B0A3FF"),
    "restarts": RuleStyle("#3A9BD0", "#8FD3FF", "dashdot"),
    "portfolio": RuleStyle("#6B7A00", "#CBDD4A", "dashdot"),
    "auto": RuleStyle("#111111", "#FFFFFF", width=2.8),
}
_SPARE = (
    ("#A6322C", "#FF8E86"),
    ("#2F6F3E", "#84D696"),
    ("#3B4FA0", "#A3B4FF"),
    ("#7A3B7A", "#E0A0E0"),
)


def rule_style(name: str, place: int = 0) -> RuleStyle:
    """The style of a rule; rules without one get spare colors by their position.

    Args:
        name: The rule's name.
        place: Its place among the curves of a picture.

    Example:
        >>> rule_style("fixed").color, rule_style("mine", 1).dark
        ('#0072B2', '#84D696')
    """
    if name in RULE_STYLES:
        return RULE_STYLES[name]
    color, dark = _SPARE[place % len(_SPARE)]
    return RuleStyle(color, dark, ("solid", "dash", "dot")[place // len(_SPARE) % 3])


def every_style() -> list[RuleStyle]:
    """The styles of all rules, and those for rules without one."""
    return [*RULE_STYLES.values(), *(RuleStyle(color, dark) for color, dark in _SPARE)]
