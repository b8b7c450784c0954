"""Exported models: `vkq export` writes a file; libvkq (native/) runs it without Python, and `vkq.load` runs
it from Python."""
