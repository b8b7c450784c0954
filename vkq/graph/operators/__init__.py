"""The vocabulary of graphs."""
