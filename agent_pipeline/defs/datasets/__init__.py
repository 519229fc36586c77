"""Assets of the stage `datasets`: rows to train on, coresets and the replay buffer."""
