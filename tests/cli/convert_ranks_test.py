"""Under mpiexec the ranks share the work on one output, whose bytes equal those of a single process."""

import hashlib
import os
import shutil

import fsdp_cli
from convert_fixtures import PROGRAM, ROOT, ConvertCase

INPUTS = {
    "full .pt": (ROOT / "pt_t211_zoo" / "ckpt.pt", []),
    "legacy .pt": (ROOT / "pt_t211_legacy_proto4" / "ckpt.pt", []),
    "FSDP2 with TP": (ROOT / "fsdp2_t211_ws4_tp" / "ckpt", []),
    "FSDP1 with optimizer": (ROOT / "sharded_t241_ws2_gpt_optim" / "ckpt", []),
    "local state with optimizer": (ROOT / "local_t241_ws3_gpt_rawoptim" / "ckpt",
                                   ["--param-shapes", ROOT / "local_t241_ws3_gpt_rawoptim" / "param_shapes.json", "--optim-files",
                                    ROOT / "local_t241_ws3_gpt_rawoptim" / "optim-rank*.pt"]),
    "sharded safetensors": (ROOT / "hf_llama_sharded_bf16", []),
}
OUTPUTS = {"out.pt": [], "out.safetensors": [], "dcp": ["--to", "dcp", "--shards", "3"], "hf": ["--max-shard-size", "20KB"]}


def digests(output):
    """Returns {relative name: digest} of a file or of all files below a directory."""
    files = [output] if output.is_file() else sorted(p for p in output.rglob("*") if p.is_file())
    return {str(f.relative_to(output.parent)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


class Ranks(ConvertCase):
    def converted(self, source, output, *options, ranks=0):
        (self.folder / output).parent.mkdir(parents=True, exist_ok=True)
        return digests(self.convert(source, output, *options, ranks=ranks))

    def test_same_bytes(self):
        for title, (source, options) in INPUTS.items():
            for name, more in OUTPUTS.items():
                with self.subTest(source=title, output=name):
                    alone = self.converted(source, f"{title}/alone/{name}", *options, *more)
                    self.assertTrue(alone)
                    for ranks in (1, 2, 3) if title == "FSDP2 with TP" else (3,):
                        shared = self.converted(source, f"{title}/{ranks}/{name}", *options, *more, ranks=ranks)
                        self.assertEqual(shared, alone, f"{ranks} ranks")

    def test_same_bytes_whatever_the_threads(self):
        source = ROOT / "fsdp2_t211_ws4_llama" / "ckpt"
        for name, more in OUTPUTS.items():
            found = [self.converted(source, f"jobs-{jobs}/{name}", *more, "--jobs", jobs) for jobs in (1, 2, 7)]
            self.assertEqual(found[0], found[1])
            self.assertEqual(found[0], found[2])

    def test_every_rank_gets_the_error_and_one_tells_it(self):
        missing = fsdp_cli.run(PROGRAM, [self.folder / "absent", self.folder / "x.pt"], 3)
        self.assert_refused(missing, 4, "absent")
        output = self.convert(ROOT / "st_zoo", "there.pt")
        self.assert_refused(fsdp_cli.run(PROGRAM, [ROOT / "st_zoo", output], 3), 2, "--overwrite")

    def test_damage_found_by_any_rank(self):
        broken = self.folder / "broken.pt"
        data = bytearray((ROOT / "pt_t211_gpt_full" / "ckpt.pt").read_bytes())
        data[len(data) // 2] ^= 1
        broken.write_bytes(data)
        for ranks in (0, 2, 3):
            result = fsdp_cli.run(PROGRAM, [broken, self.folder / "from-broken.pt"], ranks)
            self.assert_refused(result, 4, "broken.pt")
            self.assertFalse((self.folder / "from-broken.pt").exists())
        self.assertEqual(self.temporary_files(), [])

    def test_a_launcher_without_mpi_support(self):
        """A program that was moved away from its libraries explains this under a launcher and works without one."""
        lonely = self.folder / "elsewhere" / "bin"
        lonely.mkdir(parents=True)
        program = lonely / PROGRAM
        shutil.copy(fsdp_cli.folder("FSDP_BIN") / PROGRAM, program)
        before = os.environ["FSDP_BIN"]
        self.addCleanup(os.environ.__setitem__, "FSDP_BIN", before)
        os.environ["FSDP_BIN"] = str(lonely)
        alone = fsdp_cli.run(PROGRAM, ["--inspect", ROOT / "st_zoo"])
        self.assertEqual(alone.code, 0, str(alone))
        launched = fsdp_cli.run(PROGRAM, ["--inspect", ROOT / "st_zoo"], 1)
        self.assert_refused(launched, 1, "libfsdp_mpi.so", "elsewhere/lib")


if __name__ == "__main__":
    fsdp_cli.main()
