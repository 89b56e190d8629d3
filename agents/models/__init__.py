"""Small trained twins of large models: their arithmetic, their weights, and the large model's sizes."""
