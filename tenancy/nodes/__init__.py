"""What operators want of nodes: which of them get nothing new."""
