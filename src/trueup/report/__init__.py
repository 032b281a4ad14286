"""How records are shown: tables in a terminal (`terminal`) and one self-contained page (`html`).

Nothing is decided or computed about a run here: what is shown was measured, derived and billed below.
Importing this package imports neither torch nor matplotlib; `html` imports matplotlib when it draws.
"""
