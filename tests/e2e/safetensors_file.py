"""Files of safetensors, read without their package."""
import json
import struct

import numpy as np


def arrays(path):
    """The tensors of fp32, by name."""
    with open(path, "rb") as f:
        data = f.read()
    (n,) = struct.unpack("<Q", data[:8])
    found = {}
    for name, entry in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = (8 + n + at for at in entry["data_offsets"])
            found[name] = np.frombuffer(data[begin:end], dtype=np.float32).reshape(entry["shape"])
    return found
