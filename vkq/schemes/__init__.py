"""A scheme states the dtypes of a layer's operands and the layer's formula. It checks the operands,
computes constants from them, quantizes or converts the activations, and creates the matrix product or
direct convolution. To add a scheme, add a file here, its shaders and its tests (CONTRIBUTING.md)."""
