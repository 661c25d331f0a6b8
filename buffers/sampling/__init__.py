"""What is drawn from stored episodes, how, and in which form it is handed out."""
