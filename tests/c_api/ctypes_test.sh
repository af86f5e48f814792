#!/usr/bin/env bash
# Runs ctypes_test.py; the library must load into a Python of any provenance.
exec python3 "$1" "$2"
