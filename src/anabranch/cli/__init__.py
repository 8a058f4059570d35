"""The command `anabranch`."""
