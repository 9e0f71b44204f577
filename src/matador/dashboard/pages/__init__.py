"""The pages of the dashboard, one module for each group of them."""
