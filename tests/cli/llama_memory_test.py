"""Loading weights: every rank reads only its own rows, so no rank ever holds the other ranks' weights.

The test measures each rank's own memory (anonymous pages) at its highest, read from /proc while the ranks load.
FSDP_LLAMA_GIB=2 makes the file that large; the default is small enough for every test run.
"""

import math
import os
import pathlib
import time

import fsdp_cli
import llama_cli

RANKS = 4


def status(pid):
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines) if name in ("RssAnon", "RssFile", "RssShmem", "VmHWM")}


class Loading(llama_cli.Case):
    def peaks(self, model, *more):
        """Returns the highest RssAnon, RssShmem and VmHWM of each rank."""
        log = self.folder / "log"
        process = fsdp_cli.start("fsdp-finetune", ["--model", model, "--max-epochs", -1, "--prompt", "e2e4", "--num-tokens", 1, "--precision", "bf16",
                                                   "--out-dir", self.runs, "--run-name", "load", *more, *fsdp_cli.COMMON], RANKS, log)
        highest = {}
        while process.poll() is None:
            for pid in fsdp_cli.rank_processes(process.pid, "fsdp-finetune"):
                mine = highest.setdefault(pid, {})
                for name, value in status(pid).items():
                    mine[name] = max(mine.get(name, 0), value)
            time.sleep(0.01)
        self.assertEqual(process.returncode, 0, log.read_text())
        self.assertEqual(len(highest), RANKS)
        return list(highest.values())

    def test_no_rank_holds_the_model(self):
        large = float(os.environ.get("FSDP_LLAMA_GIB", "0.25"))
        sizes = {"hidden_size": 1024, "intermediate_size": 2752, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8000}
        if large >= 1:
            sizes |= {"hidden_size": 2048, "intermediate_size": 5504, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32016}
        per_layer = 4 * sizes["hidden_size"] ** 2 + 3 * sizes["hidden_size"] * sizes["intermediate_size"]
        layers = max(1, round((large * 2**30 / 2 - 2 * sizes["vocab_size"] * sizes["hidden_size"]) / per_layer))
        model = llama_cli.make_snapshot(self.folder / "large", num_hidden_layers=layers, **sizes)
        parameters = sum(math.prod(shape) for shape in llama_cli.shapes({**llama_cli.CONFIG, **sizes, "num_hidden_layers": layers}).values())
        stored = sum(f.stat().st_size for f in model.glob("*.safetensors"))
        base = max(p["RssAnon"] for p in self.peaks(self.model))
        found = self.peaks(model)
        anonymous = max(p["RssAnon"] for p in found)
        mib = 2**20
        fsdp_cli.say(f"{stored / mib:.0f} MiB of bf16 weights ({parameters / 1e6:.0f} M parameters, {layers} layers) on {RANKS} ranks: "
                     f"own memory {anonymous / mib:.0f} MiB a rank at the most ({base / mib:.0f} MiB with a model of 0.2 MiB), resident "
                     f"{max(p['VmHWM'] for p in found) / mib:.0f} MiB with libraries and the shared gathered weights")
        # A rank's own memory: its quarter as float32 master weights and, while loading, one parameter's rows as stored and in float32.
        share = 4 * parameters / RANKS
        largest = sizes["vocab_size"] * sizes["hidden_size"] / RANKS * 6
        self.assertLess(anonymous - base, share + 2 * largest + 48 * mib)  # allocator and activations of a few tokens
        self.assertGreater(anonymous - base, 0.8 * share)  # the figure is not zero
        # All ranks together hold one copy of the gathered weights, which is not counted above.
        self.assertLess(max(p["RssShmem"] for p in found), 2 * parameters + 2 * largest + 48 * mib)


if __name__ == "__main__":
    fsdp_cli.main()
