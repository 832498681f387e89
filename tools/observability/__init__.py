"""`make dashboards`: Grafana's dashboard and Prometheus' alert rules, made from one table.

Standard library only. Read next: `panels`.
"""
