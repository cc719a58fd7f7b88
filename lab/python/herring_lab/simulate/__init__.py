"""Jobs in virtual time: how long an all-reduce takes on hosts and links that nobody has yet."""
