"""fsdp-download in a cache that others may write: nothing that they plant is followed, kept or trusted."""

import os
import zlib

import fsdp_cli
from download_cli import FOLDER, MIB, NAME, DownloadCase, random_bytes
from hub_server import Repo

WEIGHTS = "model.safetensors"
VALUABLE = b"what this user must not lose\n" * 5000
STRANGER = 54321


class Planted(DownloadCase):
    def setUp(self):
        super().setUp()
        self.serve({("model", NAME): Repo({"config.json": b"{}\n", WEIGHTS: random_bytes(MIB, 1)})})
        self.valuable = self.folder / "valuable"
        self.valuable.write_bytes(VALUABLE)
        self.precious = self.folder / "precious"
        self.precious.mkdir()
        (self.precious / "keep").write_bytes(VALUABLE)

    def plant_part(self, generation=1):
        """Makes the folder of another user's part with its claim released, so that the next download takes it over."""
        part = self.partial(WEIGHTS) / f"part.{generation}"
        part.mkdir(parents=True)
        (part.parent / f"claim.{generation}").write_text("released")
        (part / "journal").write_text(f"fsdp-partial 1 {self.repo.hash(WEIGHTS)} {MIB}\n0 100 00000000\n")
        return part

    def assert_right(self):
        """The snapshot is right, its blob is a regular file of this user, and everything else is unchanged."""
        self.assert_snapshot(["config.json", WEIGHTS])
        blob = self.storage / "blobs" / self.repo.hash(WEIGHTS)
        self.assertFalse(blob.is_symlink())
        self.assertEqual((blob.stat().st_nlink, blob.stat().st_uid), (1, os.geteuid()))
        self.assert_untouched()

    def assert_untouched(self):
        self.assertEqual(self.valuable.read_bytes(), VALUABLE)
        self.assertEqual((self.precious / "keep").read_bytes(), VALUABLE)
        self.assertEqual([p.name for p in self.precious.iterdir()], ["keep"])

    def test_parts(self):
        def plant(how):
            self.setUp()
            with self.subTest(how.__name__):
                how()
                self.download(limit_seconds=60)
                self.assert_right()

        def a_symlink_as_data():
            (self.plant_part() / "data").symlink_to(self.valuable)

        def a_symlink_as_journal():
            part = self.plant_part()
            (part / "journal").unlink()
            (part / "journal").symlink_to(self.valuable)

        def a_hard_link_as_data():
            os.link(self.valuable, self.plant_part() / "data")

        def a_pipe_as_data():
            os.mkfifo(self.plant_part() / "data")

        def pipes_as_journal_and_claim():
            part = self.plant_part(3)
            (part / "journal").unlink()
            os.mkfifo(part / "journal")
            os.mkfifo(part.parent / "claim.2")

        def the_next_part():
            (self.plant_part() / "data").write_bytes(b"x")
            part = self.partial(WEIGHTS) / "part.2"
            part.mkdir()
            (part / "data").symlink_to(self.valuable)

        def a_folder_as_part():
            part = self.plant_part()
            (part / "journal").unlink()
            part.rmdir()
            part.symlink_to(self.precious)

        def a_blob():
            blobs = self.storage / "blobs"
            blobs.mkdir(parents=True)
            (blobs / self.repo.hash(WEIGHTS)).symlink_to(self.valuable)
            os.link(self.valuable, blobs / self.repo.hash("config.json"))

        def files_of_the_snapshot():
            self.snapshot().mkdir(parents=True)
            (self.snapshot() / WEIGHTS).symlink_to(self.valuable)
            os.link(self.valuable, self.snapshot() / "config.json")

        def marks():
            for name in ("manifest", "ready", "verified"):
                (self.storage / ".fsdp" / name).mkdir(parents=True)
            (self.storage / ".fsdp" / "manifest" / f"{self.repo.commit}.json").symlink_to(self.folder / "nowhere")
            (self.storage / ".fsdp" / "ready" / self.repo.commit).symlink_to(self.valuable)
            (self.storage / ".fsdp" / "verified" / self.repo.hash(WEIGHTS)).symlink_to(self.valuable)
            (self.storage / "refs").mkdir()
            (self.storage / "refs" / "main").symlink_to(self.valuable)

        for how in (a_symlink_as_data, a_symlink_as_journal, a_hard_link_as_data, a_pipe_as_data, pipes_as_journal_and_claim,
                    the_next_part, a_folder_as_part, a_blob, files_of_the_snapshot, marks):
            plant(how)

    def test_links_in_place_of_our_folders(self):
        for path in (".fsdp", ".fsdp/partial", f".fsdp/partial/{self.repo.hash(WEIGHTS)}", ".fsdp/ready", ".fsdp/verified",
                     f"snapshots/{self.repo.commit}"):
            with self.subTest(path):
                self.setUp()
                link = self.storage / path
                link.parent.mkdir(parents=True)
                link.symlink_to(self.precious)
                self.refused(code=4, words=[str(link), "symbolic link", "remove it"])
                self.assert_untouched()
                link.unlink()
                self.download()
                self.assert_right()

    def test_a_snapshot_that_is_a_link_is_not_believed(self):
        self.download()
        elsewhere = self.folder / "elsewhere"
        self.snapshot().rename(elsewhere)
        (elsewhere / "config.json").unlink()
        (elsewhere / "config.json").write_bytes(b"[]\n")  # of the right size
        self.snapshot().symlink_to(elsewhere)
        words = [str(self.snapshot()), "symbolic link"]
        self.refused(code=4, words=words)
        self.refused("--verify", code=4, words=words)
        self.refused(code=4, words=words, env={"HF_HUB_OFFLINE": "1"})
        env = self.environment(HF_HUB_OFFLINE="1")
        result = fsdp_cli.run("fsdp-eval", [NAME, "--prompt", "a", *fsdp_cli.COMMON], env=env)
        self.assertEqual(result.code, 4, str(result))
        self.assertIn("symbolic link", result.err)

    def require_root(self):
        if os.geteuid() != 0:
            self.skipTest("only root makes links of another user")

    def test_own_links_are_followed_and_a_strangers_are_not(self):
        self.require_root()
        for path in (FOLDER, f"{FOLDER}/blobs", f"{FOLDER}/refs"):
            for stranger in (False, True):
                with self.subTest(path, stranger=stranger):
                    self.setUp()
                    big = self.folder / "big-disk"
                    big.mkdir()
                    link = self.cache / path
                    link.parent.mkdir(parents=True)
                    link.symlink_to(big)
                    if stranger:
                        os.lchown(link, STRANGER, STRANGER)
                        self.refused(code=4, words=[str(link), f"symbolic link (of user {STRANGER})"])
                        self.assertEqual(list(big.iterdir()), [])
                    else:
                        self.download()
                        self.assert_right()
                        self.assertTrue(list(big.iterdir()))

    def test_the_cache_itself_may_be_a_link(self):
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        self.cache.symlink_to(elsewhere)
        self.download()
        self.assert_right()
        self.assertTrue((elsewhere / FOLDER).is_dir())

    def test_another_users_part_is_copied_not_written(self):
        self.require_root()
        content, half = self.repo.files[WEIGHTS], MIB // 2
        part = self.plant_part()
        (part / "data").write_bytes(content[:half])
        line = f"0 {half} {zlib.crc32(content[:half]):08x}"
        (part / "journal").write_text(f"fsdp-partial 1 {self.repo.hash(WEIGHTS)} {MIB}\n{line}\n")
        for path in (part, part / "data", part / "journal"):
            os.chown(path, STRANGER, STRANGER)
        inode = (part / "data").stat().st_ino
        report = self.report()
        self.assert_right()
        self.assertEqual(report["bytes_received"], MIB - half + len(self.repo.files["config.json"]))
        self.assertNotEqual((self.storage / "blobs" / self.repo.hash(WEIGHTS)).stat().st_ino, inode)


if __name__ == "__main__":
    fsdp_cli.main()
