"""Unit costs of this machine: `measure` finds them, `file` keeps them in the user's cache folder and reads them."""
