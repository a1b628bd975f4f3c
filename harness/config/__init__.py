"""The only YAML door: a matrix file becomes a checked `records.Matrix`, or an error with its place.

`tree` reads YAML and remembers where everything stands, `entries` says which keys there are, `load`
puts a matrix together, `page` writes docs/matrix.md from the entries. Nothing above this package
sees YAML or pydantic.
"""

from harness.config.load import load_matrix
from harness.config.page import matrix_page, matrix_schema

__all__ = ["load_matrix", "matrix_page", "matrix_schema"]
