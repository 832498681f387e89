"""What operators want of where weights are: rules by model."""
