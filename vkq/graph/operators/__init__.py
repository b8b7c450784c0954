"""The operators of graphs: shape inference, and computation in NumPy."""
