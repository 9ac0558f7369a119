"""Load a server and say how many streams it keeps in real time.

load.py      client processes: when requests start, what arrives when
report.py    what arrived -> a row a level, a table
result.py    a JSON file that says where, when and how it was measured
cli.py       `orpheus-serving bench`
"""
