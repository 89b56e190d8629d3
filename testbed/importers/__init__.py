"""Networks that other people recorded, as topology files of ours.

    bytes --reading--> text --detect--> one reader per format --> Graph --resolve--> Network --write--> YAML text

``graph`` is the neutral value between the readers and everything after them: it says what the file says and nothing
else.  What a file lacks (rates, delays, which nodes are servers) comes from options, in ``resolve``; nothing is made
up.  ``pipeline`` puts the steps together and makes sure that what it returns loads.

    graphml, gml, nodelink   text -> attributes of nodes and edges (``attributes.Attributed``)
    zoo, shadow              what the attributes mean: Internet Topology Zoo and its like, Shadow
    containerlab, kollaps    text -> Graph
    mininet                  a Mininet script, which is run -> Graph
    rtt                      tables of round trips (CSV, JSON, Markdown) -> Graph
"""
