"""Calls init() with each setting that init() reads, and prints the errors."""

import json
import os
import sys

import herring

for name in [name for name in os.environ if name.startswith("HERRING_")]:
    del os.environ[name]
found = []
for variable, option, environment, text in json.load(sys.stdin):
    try:
        if option:
            herring.init(**{option: text})
        else:
            os.environ.update({**environment, variable: text})
            herring.init()
    except herring.ConfigurationError as error:
        found.append(str(error))
    else:
        found.append("")
        herring.shutdown()
    for name in [variable, *environment]:
        os.environ.pop(name, None)
print(json.dumps(found))
