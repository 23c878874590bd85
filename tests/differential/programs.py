"""Runs the programs as tests/cli does, and writes token files."""
import os
import pathlib
import sys

from answers import BUILD, temporary_folder  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("FSDP_BIN", str(BUILD / "bin"))
os.environ.setdefault("FSDP_LOADED", str(BUILD / "tests"))
os.environ.setdefault("FSDP_FIXTURES", str(ROOT / "tests" / "fixtures"))
os.environ.setdefault("FSDP_DATA", str(ROOT / "data"))
sys.path.append(str(ROOT / "tests" / "cli"))
from fsdp_cli import run  # noqa: E402, F401
from llama_cli import write_documents  # noqa: E402, F401


def without_names(words, names):
    """Returns a message without what a case made up, so that messages of one kind are alike."""
    for name in sorted(names, key=len, reverse=True):
        words = words.replace(f'"{name}"', "NAME")
    return words
