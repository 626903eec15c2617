"""The command `kshift`: the composition root. It wires the packages; nothing imports it."""
