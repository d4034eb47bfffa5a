"""Filters: ways to multiply with a Gaussian kernel matrix over many points."""

from proxfield.core.filters.plan import FILTERS as FILTERS
from proxfield.core.filters.plan import choose as choose
from proxfield.core.filters.plan import make_filter as make_filter
