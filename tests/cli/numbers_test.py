"""Invalid, impossible or unsuitable numbers: every program refuses them and names the option."""

import concurrent.futures
import os
import re

import fsdp_cli

# Arguments before the options.
PROGRAMS = {"fsdp-finetune": [], "fsdp-memprobe": [], "fsdp-eval": ["x"], "fsdp-ckpt-convert": [fsdp_cli.folder("FSDP_FIXTURES") / "checkpoints" / "st_zoo", "b"], "fsdp-download": ["me/model"],
            "fsdp-download tokens": ["--input", "a", "--tokenizer", "gpt2", "--output", "b"], "fsdp-bf16check": []}
WRONG = ["nan", "inf", "-1", "1e400", "99999999999999999999"]
# Options whose numbers are texts with units or clock times, with the arguments that make the program read them.
TEXTS = {"fsdp-finetune": {"time-limit": []},
         "fsdp-memprobe": {"time-limit": [], "memory": [], "margin": ["--search"], "cuda-context": ["--gpu", "l4"], "nccl-buffers": ["--gpu", "l4"]},
         "fsdp-ckpt-convert": {"max-shard-size": ["--to", "hf"]}}
MAY_BE_NEGATIVE = {"max-epochs"}


class Numbers(fsdp_cli.Case):
    def refusal(self, program, option, value, more=()):
        """Returns None if the program refuses the value correctly, otherwise a description of the fault."""
        name, *subcommand = program.split()
        words = [*subcommand, *PROGRAMS[program], *more, f"--{option}", value, *(["0.9"] if option == "betas" else [])]
        result = fsdp_cli.run(name, words)
        if result.code == 2 and len(result.errors()) == 1 and f"--{option}" in result.errors()[0]:
            return None
        return str(result)

    def test_every_number_of_every_program(self):
        cases = []
        for program in PROGRAMS:
            name, *subcommand = program.split()
            text = fsdp_cli.run(name, [*subcommand, "--help"]).out
            numbers = re.findall(r"^ +--([a-z][a-z0-9-]+)\S* (U?INT|FLOAT)", text, re.M)
            self.assertTrue(numbers or program == "fsdp-bf16check", program)
            for at, (option, kind) in enumerate(numbers):
                # The refusal depends on the kind of the number, so each option is tested with two values; FSDP_ALL=1: with all.
                # A huge value is valid for an option of type FLOAT.
                values = [v for v in WRONG if not (kind == "FLOAT" and v.startswith("99")) and not (v == "-1" and option in MAY_BE_NEGATIVE)]
                for value in values if os.environ.get("FSDP_ALL") else [values[at % len(values)], values[(at + 1) % len(values)]]:
                    cases.append((program, option, value))
        self.assertGreater(len(cases), 120)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            wrong = [found for found in pool.map(lambda case: self.refusal(*case), cases) if found]
        self.assertEqual(wrong, [], f"{len(wrong)} of {len(cases)}")

    def test_numbers_in_texts(self):
        for program, options in TEXTS.items():
            for option, more in options.items():
                for value in WRONG:
                    self.assertIsNone(self.refusal(program, option, value, more))
                    if option == "time-limit" and program == "fsdp-finetune":
                        self.assertIsNone(self.refusal(program, option, f"1:{value}", more))

    def test_from_config_files_and_in_lists(self):
        file = self.folder / "wrong.ini"
        for line, name in (("lr=nan", "--lr"), ("betas=[0.9, inf]", "--betas"), ("save-every=-1", "--save-every"), ("seed=\"\"", "--seed"),
                           ("max-steps=18446744073709551616", "--max-steps"), ("num_layers=2.5", "--num-layers")):
            file.write_text(line + "\n")
            self.assert_refused(fsdp_cli.run("fsdp-finetune", ["--config", file]), 2, name)
        self.assert_refused(fsdp_cli.run("fsdp-memprobe", ["--nodes", "1,-2", "--ranks-per-node", "1"]), 2, "--nodes")

    def test_what_means_something_is_taken(self):
        result = self.train("a", "--max-steps", "+2", "--batch-size", "010", "--seed", "18446744073709551615", "--lr", ".5e-3", "--eps", "1e-8")
        self.assertIn("10 rows per step", result.err)
        self.train("a", "--max-epochs", "-1", "--val-data", self.val_data)
        self.assert_refused(self.train("a", "--max-epochs", "1e300", code=2), 2, "--max-epochs")


if __name__ == "__main__":
    fsdp_cli.main()
