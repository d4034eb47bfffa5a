"""Filters: ways to multiply with a Gaussian kernel matrix over many points."""

from proxfield.filters.registry import FILTERS as FILTERS
from proxfield.filters.registry import choose as choose
from proxfield.filters.registry import make_filter as make_filter
