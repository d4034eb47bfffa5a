"""Where programs run: the libraries a device needs, whether it is there, and its memory."""
