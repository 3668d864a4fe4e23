"""What proves a bound, and trusts no solver."""
