"""Files: UAI models, evidence and results, plain or compressed."""

from proxfield.io.files import atomic_write, read_bytes
from proxfield.io.results import (
    format_map,
    format_mar,
    format_pr,
    parse_evidence,
    parse_map,
    parse_mar,
    parse_pr,
    read_evidence,
    read_map,
    read_mar,
    read_pr,
    write_evidence,
)
from proxfield.io.uai import (
    UaiModel,
    format_model,
    model_to_field,
    parse_model,
    read_model,
    write_model,
)

__all__ = [
    "UaiModel",
    "atomic_write",
    "format_map",
    "format_mar",
    "format_model",
    "format_pr",
    "model_to_field",
    "parse_evidence",
    "parse_map",
    "parse_mar",
    "parse_model",
    "parse_pr",
    "read_bytes",
    "read_evidence",
    "read_map",
    "read_mar",
    "read_model",
    "read_pr",
    "write_evidence",
    "write_model",
]
