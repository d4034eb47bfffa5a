"""The studio: a dense CRF on a local page, with sliders. It needs the extra ``studio``."""
