"""`python -m harness.config > docs/matrix.md` renews the reference of the matrix file."""

from harness.config.page import matrix_page

print(matrix_page(), end="")
