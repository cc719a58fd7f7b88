"""Where the processes of an elastic job wait for its generations: the service and its members."""
