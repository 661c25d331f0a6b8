"""The rows of one collect call for on-policy learners, with advantages and minibatches."""
