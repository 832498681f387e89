"""Hot standby decides which weights are where: it reads the fleet and its demand, and plans."""
