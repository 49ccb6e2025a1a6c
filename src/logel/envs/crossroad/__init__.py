"""The crossroad: simulation, roads, picture, driver."""
