"""The functions that run each operator of a graph on a device."""
