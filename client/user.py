"""Who runs this process."""

import getpass


def user_name() -> str:
    """Return who asks, as their machine calls them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
