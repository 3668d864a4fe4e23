"""What finds factors; nothing here is trusted: see certificates."""
