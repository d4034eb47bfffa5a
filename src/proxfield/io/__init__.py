"""Files: UAI models, evidence and results, plain or compressed."""

from proxfield.io.files import atomic_write as atomic_write
from proxfield.io.files import read_bytes as read_bytes
from proxfield.io.results import format_map as format_map
from proxfield.io.results import format_mar as format_mar
from proxfield.io.results import format_pr as format_pr
from proxfield.io.results import parse_evidence as parse_evidence
from proxfield.io.results import parse_map as parse_map
from proxfield.io.results import parse_mar as parse_mar
from proxfield.io.results import parse_pr as parse_pr
from proxfield.io.results import read_evidence as read_evidence
from proxfield.io.results import read_map as read_map
from proxfield.io.results import read_mar as read_mar
from proxfield.io.results import read_pr as read_pr
from proxfield.io.results import write_evidence as write_evidence
from proxfield.io.uai import UaiModel as UaiModel
from proxfield.io.uai import format_model as format_model
from proxfield.io.uai import model_to_field as model_to_field
from proxfield.io.uai import parse_model as parse_model
from proxfield.io.uai import read_model as read_model
from proxfield.io.uai import write_model as write_model
