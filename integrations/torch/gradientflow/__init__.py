"""GradientFlow: gradient communication for data-parallel training."""
