"""What a budget buys and whether a claim holds, found out on data that need no protection."""
