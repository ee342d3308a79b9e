"""Everything that only looks: where values are made, which of them go wrong, and drawings of graphs."""
