"""Pure functions of a results folder: the same files give the same summary, anywhere."""
