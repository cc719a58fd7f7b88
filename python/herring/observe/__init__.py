"""Shows the status of running jobs: who is late, what binds, and what ranks wait for.

`schema` knows the JSON of a status, `client` fetches it from a job, `words` and `live` show it to
people, `metrics` and `otel` hand it to monitoring systems, and `dashboard.json` is for Grafana.
"""
