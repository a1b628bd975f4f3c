"""What a process allows itself unless it is told otherwise. Reads nothing, so it needs no torch."""

MAX_CONCURRENT_REQUESTS = 16
MAX_WAITING = 128  # requests beside those that can start at once
# The largest context in use, 262,144 tokens, is less than this as text and as ids.
MAX_BODY_BYTES = 4 * 1024 * 1024
STOP_TIMEOUT_S = 5.0
