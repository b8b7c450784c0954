"""Exported models: `vkq export` writes a file; libvkq (native/) runs it without Python, `vkq.load` from
Python."""
