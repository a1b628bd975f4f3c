"""Results of other tools beside ours, and ours in their shape. They never share a table of figures.

Another tool's figure keeps the tool's name for it and what the tool means by it, under a protocol
id of its own. Only `overlap` puts the two side by side, to show what the definitions make of one
server.
"""
