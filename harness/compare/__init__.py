"""A run held against earlier ones: what may be compared, what differs, and what made it differ."""
