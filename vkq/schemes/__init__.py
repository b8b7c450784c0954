"""Schemes: the types of a layer's operands, and its formula. A scheme checks the operands, folds and names
them, quantizes or converts the activations, and makes the matrix product that it needs. To add a scheme, add
a file here, its shaders and tests (CONTRIBUTING.md)."""
