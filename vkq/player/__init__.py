"""Models as files: `vkq export` writes one, libvkq (native/) runs it without Python, `vkq.load` from it."""
