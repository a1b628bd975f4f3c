"""A static site from results and reports: pages that need no server, no network and no trust.

Whatever a model, a user or an engine wrote is text on these pages and nothing else: jinja2 escapes
it, and a content security policy lets no script run but our own.
"""
