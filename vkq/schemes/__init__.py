"""A scheme defines the dtypes of a layer's operands and the layer's formula. It checks the operands,
computes constants from them, quantizes or converts the activations, and creates the matrix product or
direct convolution. CONTRIBUTING.md explains how to add a scheme."""
