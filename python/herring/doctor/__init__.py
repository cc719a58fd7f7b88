"""`herring doctor`: examines the hosts and links of a job under the job's own launcher.

One process runs for each rank, as in the job. The first rank of each host examines the host. Rank 0
meets the others as in a job, asks all of them the same questions at the same time, judges the
answers and prints the report.

- `herring.doctor.records`, `pairs`, `findings`, `judge`, `judge_hosts` and `judge_links` are pure.
- `channel` and `probes` are the connections and datagrams between hosts, which prove that both ends
  know the job's secret. `facts` and `links` measure.
- `agent` answers questions on each host. `hub` asks them, on rank 0. `report` prints.
"""
