"""fsdp-download against a hub that misbehaves: truncated and false answers, limits, expired addresses, redirects, refusals."""

import os
import resource
import signal
import subprocess
import time

import fsdp_cli
from download_cli import MIB, NAME, DownloadCase, random_bytes, tiny_files
from hub_server import Action, Repo, once, times

WEIGHTS = "model.safetensors"
PATHS = ["README.md", "config.json", "folder/empty.txt", WEIGHTS]
TOKEN = "hf_SecretTokenOfThisTest"


def of_weights(request):
    return request.host == "storage"


class FaultsTest(DownloadCase):
    def fetched_with(self, *faults, arguments=(), **how):
        self.hub.faults = list(faults)
        result = self.download(*arguments, **how)
        self.assert_snapshot(PATHS)
        return result

    # --- connections ---------------------------------------------------------------------------------------------------
    def test_a_cut_connection_goes_on_where_it_was_cut(self):
        self.fetched_with(*(once(Action(cut_after=n), of_weights) for n in (700001, 1, 1234567)), arguments=["--jobs", "1"])
        asked = [r.range[0] if r.range else 0 for r in self.hub.requests(WEIGHTS)]
        self.assertEqual(asked, [0, 700001, 700002, 700002 + 1234567])

    def test_a_connection_that_stands_still_is_given_up(self):
        begin = time.monotonic()
        self.fetched_with(once(Action(stall_after=100000), of_weights), arguments=["--jobs", "1"],
                          env={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
        self.assertGreater(time.monotonic() - begin, 1)
        self.assertEqual([r.range and r.range[0] for r in self.hub.requests(WEIGHTS)], [None, 100000])

    def test_progress_renews_the_patience(self):
        """The connection is cut more often than there are attempts, but each time after some bytes."""
        self.fetched_with(times(12, Action(cut_after=200000), of_weights), arguments=["--retries", "3"])

    def test_gives_up_when_nothing_comes_and_goes_on_later(self):
        self.hub.faults = [once(Action(cut_after=MIB), of_weights), times(99, Action(cut_after=0), of_weights)]
        self.refused("--retries", "3", "--jobs", "1", code=1,
                     words=[WEIGHTS, "gave up after 3 attempts", "127.0.0.2", "run the same command"])
        self.assertFalse((self.storage / ".fsdp" / "ready" / self.repo.commit).exists())
        self.assertEqual(len(self.hub.requests(WEIGHTS)), 4)
        self.fetched_with(arguments=["--jobs", "1"])
        self.assertEqual(self.hub.requests(WEIGHTS)[-1].range[0], MIB)

    def test_no_hub_there(self):
        self.refused("--retries", "2", code=1, env={"HF_ENDPOINT": "http://127.0.0.1:9"},
                     words=["cannot reach http://127.0.0.1:9", "login"])

    def test_the_first_failure_says_how_long_it_is_tried_again(self):
        for retries, told in ((2, 1), (1, 0)):
            result = self.download("--retries", str(retries), code=1, env={"HF_ENDPOINT": "http://127.0.0.1:9"})
            warnings = [line for line in result.err.splitlines() if line.startswith("warning: ")]
            self.assertEqual(len(warnings), told, str(result))
            for word in ("cannot reach http://127.0.0.1:9", f"{retries} attempts", "Ctrl-C", "--retries 1"):
                self.assertTrue(told == 0 or word in warnings[0], (word, warnings))
        self.hub.faults = []
        self.assertNotIn("rying again", self.fetched_with().err)

    # --- false answers ---------------------------------------------------------------------------------------------------
    def test_lengths_and_ranges_that_lie(self):
        size = len(self.repo.files[WEIGHTS])
        for headers in ({"Content-Length": str(size - 100)}, {"Content-Length": str(size + 100)},
                        {"Content-Range": f"bytes 0-{size - 1}/{size}"}, {"Content-Range": f"bytes 1048576-2097151/{size - 1}"},
                        {"Content-Range": "nonsense"}, {"Content-Encoding": "gzip"}):
            with self.subTest(headers):
                self.setUp()
                ranged = "Content-Range" in headers

                def second_part(request, ranged=ranged):
                    return of_weights(request) and (not ranged or (request.range and request.range[0] == MIB))
                self.fetched_with(times(2, Action(headers=headers), second_part),
                                  arguments=["--part-size", "1MiB"] if ranged else [])

    def test_a_length_that_stays_wrong_is_bad_input(self):
        self.hub.faults = [times(99, Action(headers={"Content-Length": "5"}), of_weights)]
        self.refused("--retries", "3", code=4, words=[WEIGHTS, "5 bytes", str(len(self.repo.files[WEIGHTS]))])

    def test_a_server_that_ignores_ranges(self):
        """Takes everything from one stream; after an interruption only the missing bytes are used."""
        self.hub.bytes_per_second = 8 * MIB
        self.hub.faults = [times(99, Action(ignore_range=True), of_weights)]
        report = self.report("--part-size", "256KiB", "--jobs", "4")
        self.assert_snapshot(PATHS)
        self.assertEqual(report["bytes_received"], report["bytes"])
        whole = [r for r in self.hub.requests(WEIGHTS) if r.sent == len(self.repo.files[WEIGHTS])]
        self.assertEqual(len(whole), 1)
        self.setUp()
        self.fetched_with(once(Action(cut_after=2 * MIB), of_weights), times(99, Action(ignore_range=True), of_weights),
                          arguments=["--jobs", "1"])

    def test_wrong_bytes_are_found_and_fetched_again(self):
        result = self.fetched_with(once(Action(damage=True), of_weights))
        self.assertIn("fetching it again", result.err)

    def test_bytes_that_stay_wrong_are_never_published(self):
        for path, when in ((WEIGHTS, of_weights), ("config.json", lambda r: r.file == "config.json")):
            with self.subTest(path):
                self.setUp()
                self.hub.faults = [times(99, Action(damage=True), when)]
                self.refused(code=4, words=[path, self.repo.hash(path), "downloads were wrong"])
                self.assertFalse((self.storage / "blobs" / self.repo.hash(path)).exists())
                self.assertFalse((self.snapshot() / path).exists())
                self.fetched_with()

    def test_a_listing_that_would_write_elsewhere(self):
        for path in ("../evil", "/tmp/evil", "a/../../evil", "a/./b", "line\nbreak", ""):
            with self.subTest(path):
                self.serve({("model", NAME): Repo({**tiny_files(9000), path: b"evil"})})
                self.refused(code=4, words=["outside its folder"])
                self.assertEqual(list(self.folder.rglob("*evil*")), [])

    def test_answers_that_are_no_hubs(self):
        for body in (b"<html>Sign in to this network</html>", b"[]", b'{"sha": "main"}'):
            self.hub.faults = [times(1, Action(status=200, body=body), lambda r: "/revision/" in r.path)]
            self.refused(code=4, words=["names no commit", "HF_ENDPOINT"])
        for body in (b"<html>", b'{"a": 1}', b'[{"type": "file"}]', b'[{"type":"file","path":"a","size":-1,"oid":"x"}]'):
            self.hub.faults = [times(1, Action(status=200, body=body), lambda r: "/tree/" in r.path)]
            result = self.download(code=4)
            self.assertEqual(len(result.errors()), 1, str(result))

    # --- statuses ----------------------------------------------------------------------------------------------------------
    def test_waits_as_long_as_it_is_told(self):
        begin = time.monotonic()
        self.fetched_with(once(Action(status=429, headers={"Retry-After": "1"}), of_weights),
                          once(Action(status=429, headers={"RateLimit": '"api";r=0;t=1'}), lambda r: "/tree/" in r.path))
        self.assertGreater(time.monotonic() - begin, 2)

    def test_refuses_to_wait_for_hours(self):
        self.hub.faults = [times(99, Action(status=429, headers={"Retry-After": "7200"}), lambda r: "/api/" in r.path)]
        self.refused(code=1, words=["limits the number of requests", "7200 s", "HF_TOKEN"])

    def test_server_errors_pass(self):
        for status in (500, 502, 503, 504, 408):
            with self.subTest(status):
                self.setUp()
                self.fetched_with(times(2, Action(status=status), of_weights),
                                  times(2, Action(status=status), lambda r: "/revision/" in r.path))
        self.setUp()
        self.hub.faults = [times(99, Action(status=500), lambda r: "/revision/" in r.path)]
        self.refused("--retries", "3", code=1, words=["status 500"])
        self.assertEqual(len(self.hub.requests()), 3)

    def test_addresses_that_expire(self):
        self.serve({("model", NAME): Repo({WEIGHTS: random_bytes(6 * MIB)})}, signed_seconds=0.4, bytes_per_second=6 * MIB)
        self.download("--jobs", "1", "--part-size", "512KiB")
        self.assert_snapshot([WEIGHTS])
        self.assertTrue([r for r in self.hub.requests(host="storage") if r.status == 403], "no address expired")
        self.assertEqual(self.hub.served(WEIGHTS), 6 * MIB)
        signed = [r for r in self.hub.requests(host="hub") if r.path.endswith(WEIGHTS)]
        self.assertLess(len(signed), 8)

    def test_an_address_that_never_works(self):
        self.serve({("model", NAME): Repo({WEIGHTS: random_bytes(MIB)})}, signed_seconds=-1)
        self.refused("--retries", "3", code=1, words=[WEIGHTS, "status 403", "127.0.0.2"])

    def test_refusals_in_words(self):
        repos = {("model", NAME): self.repo, ("model", "org/gated"): Repo(tiny_files(9000), gated=True),
                 ("model", "org/private"): Repo(tiny_files(9000), private=True)}
        self.serve(repos, token=TOKEN)
        self.refused(repo="org/absent", code=4, words=["no model", "org/absent", "HF_TOKEN", "--type dataset"])
        self.refused("--type", "dataset", code=4, words=["no dataset"])
        self.refused(repo="org/private", code=4, words=["private", "no token was given"])
        self.refused(repo="org/absent", code=4, env={"HF_TOKEN": TOKEN}, words=["the token in HF_TOKEN may not read it"])
        self.refused("--revision", "v9", code=4, words=["no revision \"v9\""])
        self.refused(repo="org/gated", code=1, words=["gated", "Ask for access at", "/org/gated", "HF_TOKEN"])
        self.refused(code=1, env={"HF_TOKEN": "wrong"}, words=["does not accept the token in HF_TOKEN"])
        self.download(repo="org/gated", env={"HF_TOKEN": TOKEN})
        self.download(repo="org/private", env={"HF_TOKEN": TOKEN})
        self.hub.faults = [times(9, Action(status=403), lambda r: "/revision/" in r.path)]
        self.refused(code=1, words=["403"])
        self.hub.faults = [times(9, Action(status=403, headers={"X-Error-Code": "GatedRepo"}), lambda r: "/api/" in r.path)]
        self.refused(code=1, env={"HF_TOKEN": TOKEN}, words=["gated", "with the account that the token"])

    # --- destinations of credentials -------------------------------------------------------------------------------------
    def test_the_token_goes_to_the_hub_alone_and_into_no_log(self):
        self.serve({("model", NAME): Repo(tiny_files(), private=True)}, token=TOKEN)
        token_file = self.folder / "token"
        token_file.write_text(f"  {TOKEN}\n")
        for env in ({"HF_TOKEN": TOKEN}, {"HF_TOKEN_PATH": str(token_file)}):
            with self.subTest(list(env)):
                for path in self.cache.glob("*"):
                    fsdp_cli.shutil.rmtree(path) if path.is_dir() else path.unlink()
                self.hub.faults = [once(Action(status=500), of_weights), once(Action(cut_after=9), of_weights)]
                result = self.download(env=env)
                self.assert_snapshot(PATHS)
                self.assertNotIn(TOKEN, result.out + result.err)
                for path in self.cache.rglob("*"):
                    if path.is_file():
                        self.assertNotIn(TOKEN.encode(), path.read_bytes())
                        self.assertNotIn(b"sig=secret", path.read_bytes())
        self.assertTrue(all("authorization" in r.headers for r in self.hub.requests(host="hub")))
        self.assertTrue(self.hub.requests(host="storage"))
        self.assertTrue(all("authorization" not in r.headers for r in self.hub.requests(host="storage")))

    def test_a_signed_address_is_not_logged(self):
        self.hub.faults = [times(99, Action(status=500), of_weights)]
        result = self.refused("--retries", "2", code=1, words=["127.0.0.2"])
        self.assertNotIn("secret", result.err)

    def test_no_core_dump_holds_the_token(self):
        def allow_core():
            resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

        try:
            control = subprocess.Popen(["sleep", "60"], preexec_fn=allow_core, cwd=self.folder)
        except (ValueError, subprocess.SubprocessError):
            self.skipTest("this user may not allow core dumps (ulimit -H -c)")
        control.send_signal(signal.SIGABRT)
        if not os.WCOREDUMP(os.waitpid(control.pid, 0)[1]):
            self.skipTest("this machine writes no core dumps here (/proc/sys/kernel/core_pattern)")
        self.serve({("model", NAME): Repo(tiny_files(), private=True)}, token=TOKEN, bytes_per_second=50000)
        line = fsdp_cli.command("fsdp-download", [NAME], 0)
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=allow_core,
                                   cwd=self.folder, env=fsdp_cli.environment(self.environment(HF_TOKEN=TOKEN)))
        self.until(lambda: self.hub.served(WEIGHTS) > 0, what="a file on its way")
        process.send_signal(signal.SIGABRT)
        status = os.waitpid(process.pid, 0)[1]
        self.assertEqual(os.WTERMSIG(status), signal.SIGABRT)
        self.assertFalse(os.WCOREDUMP(status), "a core dump with the token in it")

    def test_a_hub_that_redirects_elsewhere_gets_no_token_there(self):
        away = self.hub.url(1) + "/elsewhere"
        self.hub.faults = [once(Action(status=302, headers={"Location": away}), lambda r: "/revision/" in r.path)]
        self.download(env={"HF_TOKEN": TOKEN}, code=1)
        self.assertEqual(["authorization" in r.headers for r in self.hub.requests(host="storage")], [False])

    def test_redirects_that_never_end(self):
        self.hub.faults = [times(99, Action(status=302, headers={"Location": "/api/models/org/tiny/revision/main"}),
                                 lambda r: "/revision/" in r.path)]
        self.refused(code=1, words=["redirects more than"])

    def test_a_renamed_repository(self):
        self.hub.renamed["old/name"] = NAME
        result = self.download(repo="old/name")
        self.assertIn(f"old/name is now called {NAME}", result.err)
        snapshot = self.cache / "models--old--name" / "snapshots" / self.repo.commit
        self.assertEqual(result.out.strip(), str(snapshot))
        self.assert_snapshot(PATHS, snapshot)

    def test_proxies(self):
        proxy = self.hub.url(2)
        self.download(env={"http_proxy": proxy})
        self.assert_snapshot(PATHS)
        self.assertEqual(len(self.hub.requests(host="proxy")),
                         len(self.hub.requests(host="hub")) + len(self.hub.requests(host="storage")))
        before = len(self.hub.requests(host="proxy"))
        self.download(env={"http_proxy": proxy, "no_proxy": "127.0.0.1"})
        self.assertEqual(len(self.hub.requests(host="proxy")), before)
        self.refused("--retries", "1", code=1, env={"http_proxy": "http://127.0.0.1:9"}, words=["cannot reach"])

    def test_tls(self):
        pem = self.folder / "hub.pem"
        made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", pem,
                               "-out", self.folder / "cert.pem", "-subj", "/CN=hub", "-addext",
                               "subjectAltName=IP:127.0.0.1,IP:127.0.0.2"], capture_output=True, check=False)
        if made.returncode != 0:
            self.skipTest("no openssl to make a certificate with")
        pem.write_bytes(pem.read_bytes() + (self.folder / "cert.pem").read_bytes())
        self.serve({("model", NAME): self.repo}, certificate=pem)
        self.refused(code=1, words=["certificate", "SSL_CERT_FILE"])
        for env in ({"SSL_CERT_FILE": str(self.folder / "cert.pem")}, {"REQUESTS_CA_BUNDLE": str(self.folder / "cert.pem")}):
            self.download("--local-dir", self.folder / list(env)[0], env=env)
            self.assert_snapshot(PATHS, self.folder / list(env)[0])

    # --- disk space ------------------------------------------------------------------------------------------------------
    def test_room_is_asked_for_before_anything_is_fetched(self):
        class Huge(Repo):
            def entry(self, path):
                entry = super().entry(path)
                if path == WEIGHTS:
                    entry["lfs"]["size"] = entry["size"] = 1 << 50
                return entry
        self.serve({("model", NAME): Huge(tiny_files())})
        self.refused(code=1, words=[str(self.storage), "free", "--cache-dir"])
        self.assertEqual(self.hub.served(), 0)


if __name__ == "__main__":
    fsdp_cli.main()
