"""A topology as people look at it: a picture (SVG, PNG) or Mermaid text.

    Topology (+ what is in force) --view--> View --layout--> places --picture--> matplotlib Figure
                                              \\--mermaid--> text

Every step is pure and deterministic: the same topology is the same picture.

    view      what is drawn: nodes, directions as they are now, what changed, what is broken; and it in words
    layout    where nodes stand: metros as discs, near metros near each other
    stress    points whose distances come close to given ones
    labels    texts where they cover nothing
    picture   the figure
"""
