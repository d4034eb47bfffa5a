"""Pictures of convergence and of people, and tables for notebooks."""

from proxfield.viz.plots import convergence_figure as convergence_figure
from proxfield.viz.plots import save_figure as save_figure
