"""JupyterLab installs a module of this name, which every process of Ray would take a second over.

Whoever asks for it (jsonschema, for formats that nobody uses here) does without.
"""

raise ImportError("left out by the tests: it takes a second to import, and nothing here needs it")
