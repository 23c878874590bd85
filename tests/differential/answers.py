"""Programs that answer questions, one JSON per line: answer_lines, and other libraries that may die of a question."""
import atexit
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

BUILD = pathlib.Path(os.environ.get("FSDP_BUILD_DIR", pathlib.Path(__file__).resolve().parents[2] / "build"))


class Answers:
    """Keeps one process of a program that answers line by line; starts another after one that died."""

    def __init__(self, *command):
        self.command = command or (BUILD / "tests" / "answer_lines",)
        self.process = None

    def ask(self, question):
        """Returns the answer; {"died": CODE} if the program did not survive the question."""
        if self.process is None:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.DEVNULL)
        try:
            # ASCII, so that half of a surrogate pair cannot break the pipe
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if line:
            return json.loads(line)
        code, self.process = self.process.wait(), None
        return {"died": code}


def temporary_folder():
    """Returns a folder in memory where there is one; it is removed at the end."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="fsdp-differential.", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    atexit.register(shutil.rmtree, path, True)
    return path
