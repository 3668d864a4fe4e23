"""What the laws refuse, and that they say why."""
