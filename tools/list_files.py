#!/usr/bin/env python3
"""Prints the files of the tree that have one of the suffixes given, one a line."""

import sys

from files import tree_files

print("\n".join(map(str, tree_files(suffixes=tuple(sys.argv[1:])))))
