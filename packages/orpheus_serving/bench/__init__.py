"""Load a server and say how many streams it keeps in real time.

plan.py         who is asked what, and when: closed loop, Poisson, a trace file
texts.py        sentences of three lengths, no two alike
  |
load.py         starts client processes, all at the same moment; collects what they saw
client.py       one client process: an event loop, one session, its own lag
transport.py    one request over HTTP or WebSocket
hearing.py      the bytes of one answer -> time to first byte, first speech, lateness
machine.py      CPU and GPU use meanwhile
  |
report.py       what was seen at a level -> a row of numbers; does the level hold?
search.py       the highest level that holds
result.py       a JSON file that says where, when and how it was measured
  |
tables.py       terminal and Markdown
plots.py page.py   SVG, PNG, one HTML file
cli.py          `orpheus-serving bench`, `bench report`, `bench table`
"""
