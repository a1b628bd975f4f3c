"""Seeded generators of the demo pair's documents, one module per kind."""
