"""How a comparison is shown: for people, for a pull request, and in the forms other tools read."""
