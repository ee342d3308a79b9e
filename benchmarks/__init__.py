"""Programs that measure; each says how to run it."""
