"""TorchRL: batches and rollouts as TensorDicts, and a replay buffer that its loops take."""
