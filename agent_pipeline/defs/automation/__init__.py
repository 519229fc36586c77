"""What runs by itself: nightly runs, discovery of agents, notifications and the digest."""
