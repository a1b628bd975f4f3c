"""A run on more than one machine, by Ray: `run --on ray` and loads of several clients.

The head plans and merges; each node measures a part of the plan by the same code as a local run,
into a folder of its own. What comes out is one ordinary run folder, in which a session is a node's
turn. Ray is an extra: nothing outside this package imports it.

* `placement`  which blocks belong together on one machine; pure
* `part`       the process on a node that measures them: a session with a folder of its own
* `bundle`     what that folder has that the head does not have yet, and how it joins the run
* `node`       the Ray actor that starts the process and hands out what it wrote
* `head`       places parts, gathers bundles, and goes on when a node is lost
* `clients`    the Ray actors that share the requests of one repetition
"""
