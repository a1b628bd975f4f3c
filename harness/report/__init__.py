"""From a summary to pages, tables and pictures. Nothing is computed here that is not shown."""
