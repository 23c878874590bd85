"""fsdp-ckpt-convert's options: help, combinations, the choice of the output's format, config files, exit codes."""

import json
import os

import fsdp_cli
from convert_fixtures import PROGRAM, ROOT, ConvertCase, read_safetensors

FULL = ROOT / "pt_t211_gpt_full" / "ckpt.pt"
DCP = ROOT / "dcp_t211_ws2_app" / "ckpt"
LOCAL = ROOT / "local_t211_ws4_gpt_pad"


class Options(ConvertCase):
    def program(self, *arguments, code=0, ranks=0, **how):
        result = fsdp_cli.run(PROGRAM, arguments, ranks, **how)
        self.assertEqual(result.code, code, str(result))
        return result

    def refused(self, *arguments, words=(), code=2):
        self.assert_refused(self.program(*arguments, code=code), code, *words)

    def test_help_teaches(self):
        text = self.program("--help-all").out
        for word in ("Usage: fsdp-ckpt-convert IN OUT", "--inspect", "--verify", "--check", "Examples", "--shards", "mpiexec"):
            self.assertIn(word, text)
        self.assertEqual(self.program("--help-all", ranks=2).out, text, "once per job")

    def test_version_names_the_mpi_that_a_launcher_would_load(self):
        self.assertRegex(self.program("--version").out, r"fsdp-ckpt-convert \d+\.\d+\.\d+\nMPI \w+ \d")

    def test_paths(self):
        self.refused(words=["paths"])
        self.refused(FULL, words=["input and the output"])
        self.refused("--verify", FULL, words=["--verify"])
        self.refused("--inspect", FULL, FULL, words=["--inspect"])
        self.refused("--inspect", "--check", FULL, words=["give one"])
        self.refused(FULL, self.folder / "x.pt", "--no-such-option", words=["--no-such-option"])
        self.refused(self.folder / "absent", self.folder / "x.pt", code=4, words=["absent"])
        self.refused("--inspect", self.train_data, code=4, words=["train.h5"])

    def test_the_outputs_format(self):
        outputs = {"x.pt": "torch", "x.pth": "torch", "x.bin": "torch", "x.safetensors": "safetensors"}
        for name, kind in outputs.items():
            report = self.program(FULL, self.folder / name, "--dry-run", "--json").json()
            self.assertEqual(report["output_format"], kind)
        for more, kind in ((["--shards", 2], "dcp"), (["--max-shard-size", "1MB"], "hf"), (["--to", "dcp"], "dcp"),
                           (["--to", "torch"], "torch")):
            report = self.program(FULL, self.folder / "x", "--dry-run", "--json", *more).json()
            self.assertEqual(report["output_format"], kind)
        report = self.program(FULL, self.folder / "x.pt", "--to", "safetensors", "--dry-run", "--json").json()
        self.assertEqual(report["output_format"], "safetensors", "--to wins over the suffix")
        self.refused(FULL, self.folder / "x", words=["--to", "--shards", "--max-shard-size"])
        self.refused(FULL, self.folder / "x", "--shards", 2, "--max-shard-size", "1GB", words=["--to"])
        self.refused(FULL, self.folder / "x", "--to", "zip", words=["--to zip", "safetensors"])
        self.refused(FULL, self.folder / "x.pt", "--shards", 2, words=["--shards", "dcp"])
        self.refused(FULL, self.folder / "x.pt", "--max-shard-size", "1GB", words=["--max-shard-size", "hf"])
        self.refused(FULL, self.folder / "x.pt", "--config-from", self.folder, words=["--config-from", "hf"])
        self.refused(FULL, f"{self.folder}/x/", "--to", "torch", words=["directory"])
        self.refused(FULL, self.folder / "x", "--shards", 0, words=["--shards"])
        self.assertFalse(list(self.folder.glob("x*")), "nothing was written")

    def test_sizes(self):
        for text in ("5XB", "0", "-1GB", "nanGB", "1e30TB", "GB"):
            self.refused(FULL, self.folder / "x", f"--max-shard-size={text}", "--to", "hf", words=["--max-shard-size"])
        report = self.program(FULL, self.folder / "x", "--max-shard-size", "16KB", "--dry-run", "--json").json()
        self.assertGreater(sum("model-0" in f["name"] for f in report["files"]), 1)

    def test_dry_run_tells_the_true_sizes(self):
        for options in (["--to", "torch"], ["--to", "safetensors"], ["--to", "dcp", "--shards", 3], ["--to", "hf"]):
            with self.subTest(options[1]):
                output = self.folder / f"dry-{options[1]}"
                told = self.program(FULL, output, *options, "--dry-run", "--json").json()
                self.assertFalse(output.exists())
                written = self.program(FULL, output, *options, "--json").json()
                files = {f["name"]: f["bytes"] for f in told["files"]}
                self.assertTrue(files)
                # Files that are written last, such as .metadata, are known only after all data has been read.
                for name, size in files.items():
                    if size:
                        self.assertEqual(os.path.getsize(name), size, name)
                self.assertEqual(told["tensors"], written["tensors"])

    def test_existing_output(self):
        output = self.convert(FULL, "twice.pt")
        before = output.read_bytes()
        self.refused(DCP, output, words=["twice.pt", "--overwrite"])
        self.assertEqual(output.read_bytes(), before)
        self.program(DCP, output, "--overwrite")
        self.assertNotEqual(output.read_bytes(), before)

    def test_input_and_output_are_one(self):
        copy = self.folder / "same.pt"
        copy.write_bytes(FULL.read_bytes())
        self.assertEqual(self.program(copy, copy, "--overwrite", code=2).code, 2)
        self.assertEqual(copy.read_bytes(), FULL.read_bytes())

    def test_selection(self):
        output = self.convert(FULL, "some.safetensors", "--include", "*.attn.*", "--exclude", "*bias", "--rename", r"^transformer\.=",
                              "--rename", "attn=attention")
        names = sorted(read_safetensors(output))
        self.assertTrue(names)
        for name in names:
            self.assertRegex(name, r"^h\.\d+\.attention\.\w+\.weight$")
        self.refused(FULL, self.folder / "x.pt", "--include", "nothing*", words=["--include"])
        self.refused(FULL, self.folder / "x.pt", "--rename", "no-equals-sign", words=["--rename", "A=B"])
        self.refused(FULL, self.folder / "x.pt", "--rename", "(=x", words=["("])

    def test_dtypes(self):
        for name, stored in (("bf16", "BF16"), ("bfloat16", "BF16"), ("fp16", "F16"), ("float64", "F64")):
            output = self.convert(FULL, f"{name}.safetensors", "--dtype", name)
            self.assertEqual({dtype for dtype, _, _ in read_safetensors(output).values()}, {stored})
        self.refused(FULL, self.folder / "x.pt", "--dtype", "float31", words=["--dtype float31", "bfloat16"])
        self.refused(FULL, self.folder / "x.pt", "--map", "here-to-there", words=["--map", "mingpt-to-gpt2"])

    def test_local_state_asks_for_shapes(self):
        self.refused(LOCAL / "ckpt", self.folder / "x.pt", words=["--model-config", "--reference", "--param-shapes"])
        self.refused(LOCAL / "ckpt", self.folder / "x.pt", "--reference", FULL, "--model-config", self.folder, words=["give one"])
        self.refused(FULL, self.folder / "x.pt", "--optim-files", FULL, words=["--optim-files", "local state"])
        self.refused(LOCAL / "ckpt", self.folder / "x.pt", "--param-shapes", LOCAL / "param_shapes.json", "--optim-files",
                     self.folder / "optim*.pt", code=4, words=["--optim-files"])

    def test_config_file(self):
        config = self.folder / "convert.toml"
        config.write_text('include = ["*.ln_1.*"]\ndtype = "bf16"   # half of it\n')
        output = self.convert(FULL, "config.safetensors", "--config", config)
        tensors = read_safetensors(output)
        self.assertTrue(tensors)
        self.assertTrue(all(".ln_1." in name and dtype == "BF16" for name, (dtype, _, _) in tensors.items()))
        config.write_text("no-such-option = 1\n")
        self.refused(FULL, self.folder / "x.pt", "--config", config, words=["no-such-option"])

    def test_quiet_and_json(self):
        result = self.program(FULL, self.folder / "quiet.pt", "--quiet")
        self.assertEqual((result.out, result.err), ("", ""))
        result = self.program(FULL, self.folder / "json.pt", "--json")
        report = json.loads(result.out)
        self.assertEqual(report["bytes"], (self.folder / "json.pt").stat().st_size)
        self.assertIn("wrote", result.err)

    def test_progress_lines(self):
        result = self.program(FULL, self.folder / "progress.pt", "--progress-every", 0)
        self.assertRegex(result.err, r"written .* of .* \(\d+ %\) .*/s   eta ")
        result = self.program("--check", FULL, "--progress-every", 0)
        self.assertRegex(result.err, r"read .* of .* \(\d+ %\) .*/s   eta ")

    def test_unwritable_folder(self):
        if os.geteuid() == 0:
            place = "/proc"
        else:
            place = self.folder / "closed"
            place.mkdir(mode=0o500)
        self.assert_refused(self.program(FULL, f"{place}/x.pt", code=1), 1, place)


if __name__ == "__main__":
    fsdp_cli.main()
