"""The search over recipes: micro-batch, precision, optimizer and plan under a budget."""
