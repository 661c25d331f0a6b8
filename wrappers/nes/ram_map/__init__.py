"""RAM maps: variables of a game in RAM, and the rewards and ends computed from them."""
