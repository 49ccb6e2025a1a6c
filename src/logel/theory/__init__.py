"""What no estimator can beat."""
