"""Config files: --print-config writes the given options, --config reads them back, and nothing is lost or changed."""

import json
import re

import fsdp_cli
import llama_cli

PROGRAMS = ("fsdp-finetune", "fsdp-memprobe")
# Values of options for which words() cannot derive another value from the default.
VALUES = {"betas": ["0.8", "0.99"], "time-limit": ["1:30"], "nodes": ["2,3"], "ranks": ["4"], "ranks-per-node": ["2"],
          "max-batch": ["128"], "cores": ["8"], "link-gb-per-s": ["25"], "network-gb-per-s": ["12.5"], "plan-for": ["largest"], "rank": ["1"], "warmup-ratio": ["0.25"], "calibration": ["a b", "c,d", "[e]"]}
# Options that take one of a few words.
CHOICES = {"sharding": "hybrid-shard", "wrap": "size:1000", "backward-prefetch": "post", "precision": "bf16", "param-dtype": "fp16", "master-dtype": "bf16",
           "reduce-dtype": "bfloat16", "buffer-dtype": "float32", "activation-checkpointing": "every:2", "collectives": "host-staged",
           "lr-schedule": "cosine", "device": "cpu", "cuda-graphs": "off", "optimizer": "lion", "muon-adjust-lr": "original", "adafactor-variant": "transformers", "momentum-dtype": "bf16", "variance-dtype": "float32", "child-tuning": "d", "quantize": "nf4", "data-form": "messages", "train-on": "all", "pairs": "separate", "marks": "plain", "compute-dtype": "bf16", "offload-optimizer": "cpu", "final": "best"}
VALUES |= {name: [word] for name, word in CHOICES.items()}
# Texts that could be confused with a config file's own syntax.
TEXTS = ["two words", "a # b, c", "it's", 'say "x"', "it's \"x\"", "line\nline\tend ", " \\n ", "[x, y]", "", "true", "007", "-", "=", "{}", '"""', "é"]


def print_config(program, *arguments):
    result = fsdp_cli.run(program, [*arguments, "--print-config"])
    assert result.code == 0 and not result.err, str(result)
    return result.out


def given(text):
    """Returns the names of the options that are set."""
    return [line.split("=")[0] for line in text.splitlines() if line and not line.startswith("#")]


def all_options(program):
    """Returns names and defaults of all options of a config file: the defaults are comments `#name=value`."""
    return dict(re.findall(r"^#([a-z][a-z0-9-]*)=(.*)$", print_config(program), re.M))


def words(name, default, number):
    """Returns arguments that give the option a value other than its default."""
    if name in VALUES:
        return [f"--{name}", *VALUES[name]]
    if default in ("true", "false"):
        return [f"--{name}" if default == "false" else f"--no-{name}"]
    if re.fullmatch(r"-?[0-9.]+(e-?[0-9]+)?", default):
        return [f"--{name}", str(number % 97 + 2)]
    return [f"--{name}", TEXTS[number % len(TEXTS)]]


class ConfigFile(llama_cli.Case):
    def round_trip(self, program, arguments):
        first = print_config(program, *arguments)
        file = self.folder / "round-trip.ini"
        file.write_text(first)
        self.assertEqual(print_config(program, "--config", file), first, f"{program} {arguments}")
        return first

    def test_only_what_was_given_is_written(self):
        for program in PROGRAMS:
            self.assertEqual(given(print_config(program)), [])
            self.assertEqual(given(print_config(program, "--lr", "0.001", "--no-shuffle")), ["no-shuffle", "lr"])
        self.assertEqual(given(print_config("fsdp-finetune", "--gradient_checkpointing", "--no-fsdp")), ["sharding", "activation-checkpointing"])
        self.assertEqual(given(print_config("fsdp-memprobe", "--no-fsdp", "--activation-checkpointing")), ["sharding", "activation-checkpointing"])

    def test_a_byte_order_mark_and_a_line_without_its_sign(self):
        file = self.folder / "windows.ini"
        file.write_bytes(b"\xef\xbb\xbflr = 0.5\r\nno-shuffle = true\r\n")
        self.assertEqual(given(print_config("fsdp-finetune", "--config", file)), ["no-shuffle", "lr"])
        file.write_text("lr = 0.5\nlog-every 5\n")
        result = fsdp_cli.run("fsdp-finetune", ["--config", file, "--print-config"])
        self.assertEqual(result.code, 2)
        self.assertRegex(result.err, r"windows\.ini.*line 2.*log-every=5|line 2.*log-every=5")

    def test_every_option_comes_back(self):
        for program in PROGRAMS:
            options = all_options(program)
            listed = set(re.findall(r"^  --([a-z][a-z0-9-]+)", fsdp_cli.run(program, ["--help"]).out, re.M))
            not_in_files = {"help", "version", "config", "print-config", "no-fsdp", "no-layer-wrap-policy", "gradient-checkpointing", "watch"}
            self.assertEqual(listed - set(options), not_in_files & listed, program)
            names = sorted(options)
            for part in range(4):
                chosen = names[part::4]
                arguments = [w for i, name in enumerate(chosen) for w in words(name, options[name], 4 * i + part)]
                text = self.round_trip(program, arguments)
                self.assertEqual(sorted(given(text)), chosen, program)

    def test_a_word_that_is_none_is_told_at_once(self):
        file = self.folder / "words.ini"
        # Each name is tested on the command line by one program and in a config file by the other: they share the options.
        for i, program in enumerate(PROGRAMS):
            for n, name in enumerate(CHOICES):
                file.write_text(f"{name}=wrong\n")
                arguments = [f"--{name}", "wrong"] if (n + i) % 2 == 0 else ["--config", file]
                result = fsdp_cli.run(program, [*arguments, "--print-config"])
                self.assertEqual((result.code, result.out), (2, ""), str(result))
                self.assertIn(f"--{name} is 'wrong', choose from", result.err)

    def test_every_text_comes_back_as_it_was(self):
        self.assertEqual(given(self.round_trip("fsdp-memprobe", ["--calibration", *TEXTS])), ["calibration"])
        # The text must also be the right one, not only survive the round trip: the message names the checkpoint.
        for text in ("it's \"x\"", "line\nline\tend ", " \\n ", '"""'):
            file = self.folder / "text.ini"
            file.write_text(print_config("fsdp-finetune", "--restart", f"no/{text}"))
            wanted = fsdp_cli.run("fsdp-finetune", [*fsdp_cli.COMMON, "--restart", f"no/{text}"])
            self.assert_refused(wanted, 4, f"no/{text}".split("\n", maxsplit=1)[0])
            self.assertEqual(fsdp_cli.run("fsdp-finetune", [*fsdp_cli.COMMON, "--config", file]).err, wanted.err, repr(text))

    def test_fine_tuning_keeps_its_defaults(self):
        arguments = ["--model", self.model, "--train-data", self.games, "--max-steps", 2, "--batch-size", 2, "--max-seq-length", 64,
                     "--out-dir", self.runs, *fsdp_cli.COMMON]
        file = self.folder / "llama.ini"
        file.write_text(print_config("fsdp-finetune", *arguments, "--run-name", "by-file"))
        for name, how in (("direct", [*arguments, "--run-name", "direct"]), ("by-file", ["--config", file])):
            result = fsdp_cli.run("fsdp-finetune", how)
            self.assertEqual(result.code, 0, str(result))
        saved = [json.loads((self.checkpoints(name) / "latest" / "run.json").read_text())["options"] for name in ("direct", "by-file")]
        self.assertEqual(saved[1], saved[0])
        self.assertEqual(saved[1]["lr"], "1e-5")
        self.assertEqual(self.losses("by-file"), self.losses("direct"))

    def test_a_restart_keeps_what_the_checkpoint_says(self):
        self.train("restart", "--max-steps", 2, "--lr", "0.02", "--betas", "0.8", "0.9")
        file = self.folder / "restart.ini"
        file.write_text(print_config("fsdp-finetune", "--out-dir", self.runs, "--run-name", "restart", *fsdp_cli.COMMON, "--restart", "latest",
                                     "--max-steps", 3))
        result = fsdp_cli.run("fsdp-finetune", ["--config", file])
        self.assertEqual(result.code, 0, str(result))
        self.assertEqual([r["lr"] for r in fsdp_cli.steps(self.run_directory("restart"))], [0.02] * 3)

    def test_a_plan_is_for_the_fine_tune_alone(self):
        plan = self.folder / "plan.ini"
        arguments = ["--ranks", 2, "--memory", "8GiB", "--search", "--max-batch", 8, *fsdp_cli.TINY_MODEL, "--plan", plan, "--json", *fsdp_cli.COMMON]
        file = self.folder / "memprobe.ini"
        file.write_text(print_config("fsdp-memprobe", *arguments))
        for how in (arguments, ["--config", file]):
            plan.unlink(missing_ok=True)
            result = fsdp_cli.run("fsdp-memprobe", how)
            self.assertEqual(result.code, 0, str(result))
            self.assertEqual(set(given(plan.read_text())), {"num-layers", "num-heads", "embed-size", "vocab-size", "seq-len", "batch-size",
                                                            "sharding", "precision", "activation-checkpointing", "device"})
            self.round_trip("fsdp-finetune", ["--config", plan])

    def test_what_is_wrong_is_named_with_its_line(self):
        for text, what in (("\nlr = 1\nprompt = \"x\n", "line 3"), ("[training]\n", "sections"), ("= 3\n", "name"), ("\ufefflr = x\n", "line 1: --lr"), ("\nlr: 3\n", "line 2"), ('{"lr": 3}\n', "line 1"),
                           ('config = "other"\n', "wrong.ini: line 1: config"), ("betas = [0.1,\n", "']'"),
                           ('prompt = """\\q"""\n', "\\q")):
            file = self.folder / "wrong.ini"
            file.write_text(text)
            self.assert_refused(fsdp_cli.run("fsdp-finetune", ["--config", file]), 2, what)
        for place in (self.folder / "none.ini", self.folder):
            self.assert_refused(fsdp_cli.run("fsdp-finetune", ["--config", place]), 2, f"--config {place}")

    def test_written_by_hand(self):
        file = self.folder / "hand.ini"
        file.write_text("; a run\r\nlr = 0.002 # high\r\nbetas = [0.5,  # first\n  0.6]\nno-shuffle\nrun-name = 'a'\n"
                        "lr-schedule=cosine\nprompt = 'x \\n \"y\"'\nrun-name = \"b\"\n")
        text = print_config("fsdp-finetune", "--config", file)
        for line in ("lr=0.002", "betas=[0.5, 0.6]", "no-shuffle=true", 'run-name="b"', 'lr-schedule="cosine"', "prompt='x \\n \"y\"'"):
            self.assertIn(line, text.splitlines())


if __name__ == "__main__":
    fsdp_cli.main()
