"""How records are shown: tables in a terminal (`terminal`) and one self-contained page (`html`).

Nothing is decided or computed about a run here: what is shown was measured, derived and billed below.
Nothing here imports torch or numpy: a page is made in a fraction of a second.
"""
