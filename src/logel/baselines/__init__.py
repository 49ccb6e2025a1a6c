"""Other ways to a reward, called like `infer_reward`, to compare with."""
