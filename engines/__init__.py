"""The engine that comes with dflashbench. The harness never imports it; the two meet over HTTP."""
