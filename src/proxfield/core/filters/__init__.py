"""Filters: ways to multiply with a Gaussian kernel matrix over many points."""

from proxfield.core.filters.registry import FILTERS as FILTERS
from proxfield.core.filters.registry import choose as choose
from proxfield.core.filters.registry import make_filter as make_filter
