"""What the pages of reports and sweeps share: charts, live and as files, the record of a run, the page itself."""
