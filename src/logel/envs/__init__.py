"""Worlds to learn in: the gridworld with its exact tabular solvers, MuJoCo, the crossroad."""
