"""The school: the command line, set-up, building notebooks.

Nothing that learners import stands here, and nothing that they import uses it.
"""

import sys

# jsonschema, which nbformat imports, takes this package where it can, and the package builds a
# parser of internationalised addresses when it is imported: 1.2 CPU seconds, and no notebook's
# schema has such an address. Without it jsonschema leaves that one check out.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
