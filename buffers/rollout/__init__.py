"""What an on-policy learner gets: the rows of one collect call, advantages and minibatches."""
