"""Series of single topics and consumer groups for Prometheus: `series` reads them from the broker,
`busiest_names` bounds them. Only a page of metrics needs this package."""
