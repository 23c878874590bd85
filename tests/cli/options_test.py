"""Options of the programs: spellings, help, config files, and that no option disappears."""

import re

import fsdp_cli

# Job scripts rely on these options: adding to the lists is fine, removing is not.
FINETUNE = """
activation-checkpointing activation-checkpoints backward-prefetch batch-size betas buffer-dtype clip-grad-norm
collective-timeout collectives config cpu-offload decay-all device dropout dry-run embed-size eps eval-every
ffn-hidden-size forward-prefetch gradient-accumulation-steps help init-timeout json keep-last limit-all-gathers log-every
lr lr-schedule max-epochs max-steps meta-init model no-limit-all-gathers no-save no-shuffle num-heads num-layers
num-tokens offload-optimizer out-dir param-dtype precision print-config prompt quiet reduce-dtype reduce-every-micro-batch restart
restart-checkpoint-file run-name save-every save-interval-minutes schedule-steps seed seq-len seq-length
shard-group-size sharding time-limit total-batch-size trace train-data val-data version vocab-size warmup-steps
weight-decay wrap
""".split()
EVAL = """
batch-size cache-dir chess chess-positions collective-timeout compare config data data-field device gate help init-timeout
json max-rows max-seq-length model-config no-cache num-tokens precision prompt quiet seed seq-len seq-length sharding
temperature tokenizer top-k top-p version
""".split()

# Options in minimal_fsdp's README and parser, in both spellings, with values that are not the defaults.
SEED_OPTIONS = {
    "environment": "pbs", "model": "mingpt", "run_name": "both", "vocab_size": "98", "seq_len": "16", "seq_length": "16",
    "num_heads": "4", "num_layers": "1", "embed_size": "48", "ffn_hidden_size": "64", "restart_checkpoint_file": "latest",
    "sharding": "grad-shard", "precision": "bf16", "cpu_offload": None, "activation_checkpoints": None,
    "activation_checkpointing": None, "meta_init": None, "train_data": "a.h5", "val_data": "b.h5", "max_epochs": "-1",
    "lr": "0.25", "dropout": "0.5", "batch_size": "3", "prompt": "O Romeo", "num_tokens": "7",
}


def config_of(*arguments, ranks=0):
    result = fsdp_cli.run("fsdp-finetune", [*arguments, "--print-config"], ranks)
    assert result.code == 0, str(result)
    # Options that were given, and the defaults, which are printed as comments.
    return dict(re.findall(r"^#?([a-z][a-z0-9-]*)=(.*)$", result.out, re.M))


def arguments_of(options, dashes):
    words = []
    for name, value in options.items():
        words.append("--" + (name.replace("_", "-") if dashes else name))
        words += [] if value is None else [value]
    return words


class Options(fsdp_cli.Case):
    def test_every_seed_option_in_both_spellings(self):
        underscores = config_of(*arguments_of(SEED_OPTIONS, dashes=False))
        self.assertEqual(config_of(*arguments_of(SEED_OPTIONS, dashes=True)), underscores)
        defaults = config_of()
        for name, value in SEED_OPTIONS.items():
            key = {"seq_length": "seq_len", "activation_checkpoints": "activation_checkpointing"}.get(name, name).replace("_", "-")
            expected = value or ("all" if "checkpointing" in key else "true")
            self.assertEqual(underscores[key].strip('"'), expected, key)
            if name != "model":  # minGPT is the only model with a name
                self.assertNotEqual(underscores[key], defaults[key], f"{key} had no effect")

    def test_underscores_train(self):
        self.train("underscores", "--max_steps", "2", "--batch_size", "2", "--val_data", self.val_data, "--meta_init",
                   "--activation_checkpoints", "--cpu_offload", "--environment", "local", "--ffn_hidden_size", "40")
        self.assertEqual(len(fsdp_cli.losses(self.run_directory("underscores"))), 2)
        self.assertEqual(self.evaluate(self.checkpoints("underscores") / "latest", "--data", self.val_data)["model"]["n_hidden"], 40)

    def test_help_and_version_are_printed_once(self):
        for program in ("fsdp-finetune", "fsdp-eval"):
            alone = fsdp_cli.run(program, ["--help"])
            self.assertEqual((alone.code, alone.err), (0, ""))
            self.assertEqual(fsdp_cli.run(program, ["--help"], ranks=2).out, alone.out)
            version = fsdp_cli.run(program, ["--version"], ranks=2)
            self.assertEqual((version.code, version.out), (0, fsdp_cli.run(program, ["--version"]).out))
            for word in (program, "LibTorch", "MPI", "back ends: cpu"):
                self.assertIn(word, version.out)

    def test_help_tells_the_defaults_of_fine_tuning(self):
        text = re.sub(r"\s+", " ", fsdp_cli.run("fsdp-finetune", ["--help"]).out)
        for option, default in (("lr", "1e-5"), ("lr-schedule", "linear"), ("warmup-ratio", "0.1"), ("weight-decay", "0.01"),
                                ("betas", "0.9 0.999"), ("decay-all", "on"), ("seed", "42")):
            self.assertRegex(text, rf" --{option}[ ,](?:(?! --).)*\(fine-tuning[^)]*: {re.escape(default)}\)", option)

    def test_no_option_has_disappeared(self):
        for program, frozen in (("fsdp-finetune", FINETUNE), ("fsdp-eval", EVAL)):
            text = fsdp_cli.run(program, ["--help"]).out
            listed = set(re.findall(r"--([a-z][a-z-]*)", text))
            self.assertEqual(set(frozen) - listed, set(), program)
            for name in frozen:
                if "-" in name and name != "no-limit-all-gathers":
                    self.assertIn("--" + name.replace("-", "_"), text, f"{program}: spelling with underscores")

    def test_unknown_option_is_told_once(self):
        for program in ("fsdp-finetune", "fsdp-eval"):
            result = fsdp_cli.run(program, ["x", "--no-such-option"] if program == "fsdp-eval" else ["--no-such-option"], ranks=2)
            self.assert_refused(result, 2, "--no-such-option")

    def test_wrong_value_is_told_once(self):
        for option, value in (("--lr", "fast"), ("--num-layers", "2.5"), ("--betas", "0.9")):
            self.assert_refused(self.train("wrong", option, value, ranks=2, code=2), 2, option)

    def test_wrong_choice_names_the_choices(self):
        for option, value, choice in (("--sharding", "full", "grad-shard"), ("--precision", "fp8", "bf16"),
                                      ("--backward-prefetch", "soon", "post"), ("--wrap", "layer", "block"),
                                      ("--lr-schedule", "step", "cosine"), ("--device", "tpu", "cuda"),
                                      ("--activation-checkpointing", "some", "every:N"), ("--time-limit", "soon", "M:S"),
                                      ("--collectives", "gloo", "host-staged"), ("--model", "bert", "mingpt")):
            result = self.train("choices", option, value, "--dry-run", code=2)
            self.assert_refused(result, 2, option.removeprefix("--"), value, choice)

    def test_config_file_round_trip(self):
        given = ["--betas", "0.8", "0.99", "--no-shuffle", "--wrap", "size:1000", "--prompt", "a # b, c", "--lr", "3e-4",
                 "--activation-checkpointing", "--no-limit-all-gathers", "--run-name", "my run", "--max-steps", "7"]
        first = fsdp_cli.run("fsdp-finetune", [*given, "--print-config"], ranks=2)
        file = self.folder / "config.ini"
        file.write_text(first.out)
        second = fsdp_cli.run("fsdp-finetune", ["--config", file, "--print-config"])
        self.assertEqual(second.out, first.out)
        self.assertIn('prompt="a # b, c"', first.out)
        self.assertEqual(config_of("--config", file, "--lr", "5e-4")["lr"], "5e-4", "the command line wins")
        # The defaults stay the same after writing and reading them.
        file.write_text(fsdp_cli.run("fsdp-finetune", ["--print-config"]).out)
        a = fsdp_cli.run("fsdp-finetune", self.train_arguments("dry", "--dry-run"))
        b = fsdp_cli.run("fsdp-finetune", ["--config", file, *self.train_arguments("dry", "--dry-run")])
        self.assertEqual((b.code, b.err), (0, a.err), str(b))

    def test_config_file_by_hand(self):
        file = self.folder / "hand.ini"
        file.write_text("# a run\nlr = 0.002   # high\n\nnum_layers=3\nrun-name = 'it#s'\nbetas = [0.5, 0.6]\n")
        config = config_of("--config", file)
        self.assertEqual((float(config["lr"]), config["num-layers"], config["run-name"]), (0.002, "3", '"it#s"'))
        file.write_text("no-such-option = 1\n")
        self.assert_refused(fsdp_cli.run("fsdp-finetune", ["--config", file], ranks=2), 2, "no-such-option")
        self.assert_refused(fsdp_cli.run("fsdp-finetune", ["--config", self.folder / "none.ini"], ranks=2), 2, "none.ini")

    def test_later_option_wins(self):
        config = config_of("--lr", "1", "--betas", "0.1", "0.2", "--num-layers", "5", "--lr", "2", "--betas", "0.3", "0.4",
                           "--num_layers", "6", "--limit-all-gathers", "--no-limit-all-gathers")
        self.assertEqual([config[k] for k in ("lr", "betas", "num-layers", "limit-all-gathers")],
                         ["2", "[0.3, 0.4]", "6", "false"])

    def test_dry_run_tells_the_plan_and_writes_nothing(self):
        result = self.train("dry", "--dry-run", "--total-batch-size", "16", "--batch-size", "2", ranks=2)
        for words in ("2 ranks on 1 node", "full-shard", "mingpt 2 x 32", "64 rows x 32 tokens",
                      "16 rows per step (2 ranks x 2 x 4 micro-batches)", "4 steps", "predicted peak"):
            self.assertIn(words, result.err)
        self.assertFalse(self.run_directory("dry").exists())


if __name__ == "__main__":
    fsdp_cli.main()
