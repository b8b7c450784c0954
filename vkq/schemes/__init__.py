"""Schemes: what is computed from what. A scheme checks the operands of a layer, folds and names them, takes
the activations in, and makes the matrix product that it needs. Adding one is a file here, its shaders and
tests (CONTRIBUTING.md)."""
