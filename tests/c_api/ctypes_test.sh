#!/usr/bin/env bash
# Runs ctypes_test.py; the library must load into Pythons from any source.
exec python3 "$1" "$2"
