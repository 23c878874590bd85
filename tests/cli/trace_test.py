"""--trace: a file that Perfetto opens, with the actions of every rank."""

import json

import fsdp_cli


class Trace(fsdp_cli.Case):
    def test_trace(self):
        file = self.folder / "trace.json"
        self.train("traced", "--max-steps", 3, "--trace", file, "--no-save", ranks=2)
        events = json.loads(file.read_text())
        timed = [e for e in events if e.get("ph") == "X"]
        for category in ("compute", "collective", "optimizer", "input"):
            for rank in (0, 1):
                found = [e for e in timed if e["cat"] == category and e["pid"] == rank]
                self.assertGreaterEqual(len(found), 3, f"{category} on rank {rank}")
        for event in timed:
            self.assertTrue(event["name"] and event["ts"] >= 0 and event["dur"] >= 0, event)
        self.assertGreater(len({e["name"] for e in timed if e["cat"] == "compute"}), 4, "stages have names")

    def test_tracing_changes_nothing(self):
        self.train("plain", "--max-steps", 3, "--no-save", ranks=2)
        self.train("traced", "--max-steps", 3, "--trace", self.folder / "again.json", "--no-save", ranks=2)
        self.assertEqual(fsdp_cli.losses(self.run_directory("plain")), fsdp_cli.losses(self.run_directory("traced")))


if __name__ == "__main__":
    fsdp_cli.main()
