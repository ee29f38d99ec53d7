"""The types in which operands are stored, by name; for whoever has no NumPy. What makes arrays of them: storage.py."""

from __future__ import annotations

FLOAT32, BFLOAT16, FLOAT16, INT8 = "float32", "bfloat16", "float16", "int8"
#: Of attention; int8 is for caches alone.
DTYPES = (FLOAT32, BFLOAT16, FLOAT16)
BYTES = {FLOAT32: 4, BFLOAT16: 2, FLOAT16: 2, INT8: 1}

#: Largest ||a - b|| / ||b|| with which two still compute the same thing: some four roundings of the type. int8 stands
#: for a step of 1/127 of the largest number of a row.
TOLERANCES = {FLOAT32: 1e-4, BFLOAT16: 1.6e-2, FLOAT16: 2e-3, INT8: 4e-2}
