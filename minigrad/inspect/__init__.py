"""Everything that only looks: where values are made, what goes wrong, what takes the time, and drawings of graphs."""
