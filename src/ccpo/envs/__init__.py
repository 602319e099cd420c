"""Where costs come from: environments whose step reports a reward and a cost."""
