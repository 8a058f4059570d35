"""Reproductions of the papers' experiments, one file each; `registry` is the frame they share."""
