"""How the kernel gets, shows and loses each kind of leg."""
