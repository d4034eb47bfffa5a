"""The terms a field is made of.

A new kind is one file with a class under `saving.library_term`, and one line here. What else has
names of terms, such as `proxfield.<Kind>`, asks `TERMS`.
"""

from proxfield.core.terms.base import Layout as Layout
from proxfield.core.terms.base import Term as Term
from proxfield.core.terms.consistency import Consistency as Consistency
from proxfield.core.terms.cooccurrence import Cooccurrence as Cooccurrence
from proxfield.core.terms.factor import Factor as Factor
from proxfield.core.terms.gaussian import Gaussian as Gaussian
from proxfield.core.terms.grid import GridPairwise as GridPairwise
from proxfield.core.terms.pairwise import Ising as Ising
from proxfield.core.terms.pairwise import Pairwise as Pairwise
from proxfield.core.terms.pairwise import Potts as Potts
from proxfield.core.terms.saving import TERMS as TERMS
from proxfield.core.terms.saving import saveable as saveable
from proxfield.core.terms.unary import Constant as Constant
from proxfield.core.terms.unary import Unary as Unary
