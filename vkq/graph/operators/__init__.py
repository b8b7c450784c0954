"""The operators of graphs."""
