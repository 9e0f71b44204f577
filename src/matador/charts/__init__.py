"""Charts and HTML that is safe by construction, for reports and the dashboard."""
