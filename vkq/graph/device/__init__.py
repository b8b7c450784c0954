"""How each operator of a graph runs on a device."""
