"""fsdp-eval --html: the page of runs in a browser without a window. Pictures of the page lie in build/tests/report_page."""

import json
import math
import os
import random
import re
import signal
import subprocess
import sys

import fsdp_cli
import headless_browser

BROWSER = headless_browser.find()
if not BROWSER:
    print("SKIPPED: no Chromium: scripts/setup --full installs Debian's chromium-headless-shell")
    sys.exit(fsdp_cli.SKIPPED)

EVIL = '<img src=x onerror="window.hacked=1">'
SCRIPT = "</script><script>window.hacked=1</script><!--<script>"
SPIKE = 17.25


def synthetic_run(folder, number, steps):
    """Writes the files of a run of `steps` steps with noise, a spike, validation and chess."""
    noise = random.Random(number)
    folder.mkdir(parents=True)
    memory = int(2e9 * (1 + 0.1 * number))
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            loss = SPIKE if step == steps // 3 + number else 3 + 0.1 * number + 7 * math.exp(-12 * step / steps) + noise.gauss(0, 0.05)
            rate = (12000 + 700 * number) * noise.gauss(1, 0.03)
            file.write(json.dumps({"step": step, "job_step": step, "loss": loss, "grad_norm": abs(noise.gauss(1, 0.2)), "tokens": 16384,
                                   "step_seconds": 16384 / rate, "tokens_per_second": rate, "mfu": 0.41, "peak_memory_bytes": memory}) + "\n")
            if step % (steps // 20) == 0:
                file.write(json.dumps({"step": step, "val_loss": loss + 0.1}) + "\n")
                file.write(json.dumps({"step": step, "chess_games": 9, "chess_legal": 0.3 + 0.6 * step / steps}) + "\n")
    options = {"lr": f"{1e-4 * 2**number:g}", "batch-size": "8", "run-name": folder.name}
    (folder / "job.json").write_text(json.dumps({"format": "fsdp-job", "options": options, "world_size": 2, "parameters": 16.1e6 + 1e6 * number,
                                                 "total_steps": steps, "outcome": "done"}))


class ReportPage(fsdp_cli.Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.browser = headless_browser.Browser(BROWSER)
        cls.addClassCleanup(cls.browser.close)
        cls.pictures = fsdp_cli.folder("FSDP_BIN").parent / "tests" / "report_page"
        cls.pictures.mkdir(parents=True, exist_ok=True)
        cls.many = cls.folder / "many"
        for number in range(10):
            synthetic_run(cls.many / f"sweep-{number + 1}", number, 10000)
        cls.many_page = cls.folder / "many.html"
        cls.page = cls.folder / "page.html"
        case = cls("make_page")
        case.make_runs()
        case.make_page()

    def make_runs(self):
        """Real runs: two that differ, one whose loss is no number, one that was killed; and one of a hostile name and content."""
        shakespeare = fsdp_cli.folder("FSDP_DATA") / "shakespeare"
        base = ["--train-data", shakespeare / "train.h5", "--val-data", shakespeare / "test.h5", "--out-dir", self.runs, *fsdp_cli.COMMON,
                "--num-layers", 1, "--num-heads", 2, "--embed-size", 32, "--seq-len", 32, "--batch-size", 2, "--max-rows", 60,
                "--eval-every", 5, "--save-every", 5, "--keep-best", "--sample-prompt", "ROMEO:", "--sample-tokens", 8]
        for name, more in (("plain", ["--max-steps", 25]), ("steeper", ["--max-steps", 25, "--lr", "3e-3"]),
                           ("diverged", ["--max-steps", 8, "--lr", "1e12", "--clip-grad-norm", 0])):
            fsdp_cli.run("fsdp-finetune", [*base, "--run-name", name, *more])
        log = self.folder / "killed.log"
        process = fsdp_cli.start("fsdp-finetune", [*base, "--run-name", "killed", "--max-steps", 100000], 0, log)
        checkpoint = self.runs / "killed" / "checkpoints" / "latest"
        fsdp_cli.wait_for(process, log, lambda: checkpoint.exists() and len(fsdp_cli.records(self.runs / "killed")) > 7)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        hostile = self.runs / EVIL
        hostile.mkdir()
        (hostile / "metrics.jsonl").write_text("".join(json.dumps({"step": s, "loss": 9 - 0.1 * s, "tokens": 64, "step_seconds": 0.1,
                                                                  "tokens_per_second": 640}) + "\n" for s in range(1, 30))
                                               + json.dumps({"step": 29, "val_loss": 8, "val_set": SCRIPT}) + "\n")
        (hostile / "job.json").write_text(json.dumps({"format": "fsdp-job", "options": {"lr": SCRIPT, "model": EVIL}, "outcome": "stopped", "total_steps": 90, "world_size": 2}))
        (hostile / "samples.jsonl").write_text(json.dumps({"step": 29, "prompt": EVIL, "text": SCRIPT}) + "\n")
        (hostile / "checkpoints" / "step-00000029").mkdir(parents=True)

    def make_page(self):
        self.eval(self.runs, self.page)
        self.eval(self.many, self.many_page)

    def eval(self, runs, page, *more):
        result = fsdp_cli.run("fsdp-eval", ["--runs", runs, "--html", page, *more])
        self.assertEqual(result.code, 0, str(result))
        return result

    def open(self, page, **how):
        self.browser.open(page, **how)
        self.addCleanup(lambda: self.assertEqual(self.browser.complaints(), []))
        return self.browser.evaluate

    def names(self):
        return sorted(p.name for p in self.runs.iterdir() if (p / "metrics.jsonl").exists())

    def test_ten_runs_of_ten_thousand_steps_stay_below_a_megabyte_and_keep_their_spikes(self):
        size = self.many_page.stat().st_size
        fsdp_cli.say(f"ten runs of 10,000 steps: {size:,} bytes")
        self.assertLess(size, 1_000_000)
        data = json.loads(re.search(r'id="data">(.*?)</script>', self.many_page.read_text(), re.DOTALL)[1])
        for run in data["runs"]:
            loss = run["curves"]["loss"]
            self.assertEqual(max(loss["high"]), SPIKE)
            self.assertEqual(len(loss["mean"]), len(run["curves"]["x"]["step"]))
            self.assertEqual(run["curves"]["x"]["step"][-1], 10000)

    def test_all_curves_are_drawn(self):
        page = self.open(self.many_page)
        panels = page("[...document.querySelectorAll('#panels figure')].map(f => [f.dataset.key, f.querySelectorAll('.line').length])")
        self.assertEqual(panels, [["loss", 10], ["validation/", 10], ["metric/chess_legal", 10], ["speed", 10], ["memory", 10], ["grad_norm", 10]])
        self.assertEqual(len(set(page("[...document.querySelectorAll('figure[data-key=loss] .line')].map(l => getComputedStyle(l).stroke)"))), 10)
        for path in page("[...document.querySelectorAll('figure .line')].map(l => l.getAttribute('d'))"):
            self.assertGreater(path.count("L"), 15)
            self.assertNotIn("NaN", path)
        words = page("document.querySelector('figure[data-key=loss] svg').getAttribute('aria-label')")
        self.assertRegex(words, r"Training loss over step 1.* to 10,000\. sweep-1 from ")
        self.assertRegex(page("document.querySelector('#options').textContent"), r"parameters.*lr.*16\.1 M")

    def test_real_runs_have_curves_samples_checkpoints_and_problems(self):
        page = self.open(self.page)
        self.assertEqual(page("[...document.querySelectorAll('#legend button')].map(b => b.textContent)"), self.names())
        problems = page("document.querySelector('#problems').textContent")
        for words in ("The loss is no number since step", "without a last word", "was stopped in order after step 29 of 90", "--restart-checkpoint-file latest"):
            self.assertIn(words, problems)
        # Options that a checkpoint does not keep are given again, and as many ranks.
        self.assertRegex(problems, r"mpiexec -n 2 fsdp-finetune --out-dir ")
        self.assertRegex(problems, r"--run-name killed --restart-checkpoint-file latest [^\n]*--batch-size 2")
        self.assertIn("ROMEO:", page("document.querySelector('#samples').textContent"))
        commands = page("[...document.querySelectorAll('#checkpoints pre')].map(p => p.textContent)")
        best = os.readlink(self.checkpoints("plain") / "best")
        self.assertIn(f"fsdp-eval {self.checkpoints('plain').resolve() / best} --prompt ROMEO:", commands)
        used = subprocess.run(["bash", "-c", commands[-1] + " --num-tokens 2 --device cpu"], capture_output=True, text=True, check=False,
                              env=fsdp_cli.environment({"PATH": f"{fsdp_cli.folder('FSDP_BIN')}:{os.environ['PATH']}"}))
        self.assertEqual(used.returncode, 0, used.stderr)
        self.assertEqual(page("document.querySelectorAll('.badge.good').length"), 1)
        table = page("[...document.querySelectorAll('#runs tbody tr')].map(r => r.textContent)")
        self.assertEqual(len(table), len(self.names()))

    def small_page(self, name, lines, checkpoints=(), **links):
        """Opens the page of a run with these lines of metrics.jsonl, checkpoints of these steps and links to them."""
        run = self.folder / "small" / name
        for step in checkpoints:
            (run / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
        for link, step in links.items():
            (run / "checkpoints" / link).symlink_to(f"step-{step:08d}")
        run.mkdir(parents=True, exist_ok=True)
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.eval(run, self.folder / f"{name}.html")
        return self.open(self.folder / f"{name}.html")

    def test_tiles_have_the_lowest_loss_of_each_set(self):
        evals = [{"step": step, "val_loss": loss, "val_set": name} for step, loss in ((1, 10.82834), (2, 9.5), (3, 11)) for name in ("a", "b")]
        page = self.small_page("sets", [{"step": 1, "loss": 3}, *evals])
        tiles = page("[...document.querySelectorAll('.tile')].map(t => t.textContent)")
        self.assertEqual(tiles[:2], ["Lowest validation loss: a9.5000", "Lowest validation loss: b9.5000"])

    def test_a_checkpoint_that_chess_chose_is_the_best(self):
        page = self.small_page("chess", [{"step": 4, "loss": 3}, {"step": 4, "chess_games": 9, "chess_legal": 0.5}], (4, 8), best=4, latest=8)
        self.assertIn("best: step-00000004", page("document.querySelector('#checkpoints').textContent"))
        page = self.small_page("unmeasured", [{"step": 4, "loss": 3}], (4, 8), latest=8)
        self.assertIn("newest: step-00000008", page("document.querySelector('#checkpoints').textContent"))

    def test_enormous_steps_are_drawn(self):
        for step in (9 * 10**15, 2**53 + 1, 2**62):
            page = self.small_page(f"step-{step}", [{"step": step, "loss": 1, "tokens": 100}])
            self.assertLess(page("document.querySelectorAll('figure[data-key=loss] text').length"), 60)
            self.assertNotIn("NaN", page("document.querySelector('figure[data-key=loss] svg').outerHTML"))

    def test_the_legend_hides_and_shows(self):
        page = self.open(self.many_page)
        lines = "document.querySelectorAll('figure[data-key=loss] .line').length"
        self.browser.click("#legend button:nth-child(3)")
        self.assertEqual((page(lines), page("document.querySelector('#legend button:nth-child(3)').getAttribute('aria-pressed')")), (9, "false"))
        self.assertEqual(page("document.querySelectorAll('figure[data-key=loss] [data-run=\"2\"]').length"), 0)
        self.assertEqual(page("location.hash !== ''"), True, "a renewed page begins where this one was")
        self.browser.click("#legend button:nth-child(3)")
        self.assertEqual(page(lines), 10)

    def test_the_sweep_and_the_best_run(self):
        page = self.open(self.many_page)
        self.assertEqual(page("document.title"), "many: 10 runs")
        heads = page("[...document.querySelectorAll('#runs thead th')].map(h => h.textContent)")
        self.assertEqual(heads[:2], ["run", "lr"])
        column = heads.index("validation")
        names = page("[...document.querySelectorAll('#runs tbody tr')].map(r => r.children[0].textContent)")
        losses = [float(x) for x in page(f"[...document.querySelectorAll('#runs tbody tr')].map(r => r.children[{column}].textContent.split(' ')[0])")]
        self.assertEqual(names[0], "sweep-1")
        self.assertEqual(len(losses), 10)
        points = "[...document.querySelectorAll('figure[data-key=sweep] circle')]"
        places = page(f"{points}.map(c => [Number(c.getAttribute('cx')), Number(c.getAttribute('cy')), Number(c.dataset.run)])")
        self.assertEqual(len(places), 10)
        steps = [b[0] - a[0] for a, b in zip(sorted(places), sorted(places)[1:])]
        self.assertLess(max(steps) - min(steps), 0.01 * max(steps), "each rate is twice the one before: a logarithmic axis")
        lowest = max(places, key=lambda place: place[1])
        self.assertEqual(page(f"document.querySelector('figure[data-key=sweep] figcaption').textContent").split("best: ")[1],
                         page("[...document.querySelectorAll('#legend button')].map(b => b.textContent)")[lowest[2]])

    def test_the_table_sorts(self):
        page = self.open(self.many_page)
        heads = page("[...document.querySelectorAll('#runs thead th')].map(h => h.textContent)")
        for title, best_first in (("validation", lambda x: x), ("tokens/s", lambda x: -x)):
            column = heads.index(title) + 1
            button, cells = f"#runs th:nth-child({column}) button", f"[...document.querySelectorAll('#runs tbody tr')].map(r => r.children[{column - 1}].textContent)"
            values = lambda: [float(re.match(r"[\d,.]+", text)[0].replace(",", "")) for text in page(cells)]
            self.browser.click(button)
            self.assertEqual(values(), sorted(values(), key=best_first))
            sort = page(f"document.querySelector('#runs th:nth-child({column})').getAttribute('aria-sort')")
            self.assertEqual(sort, "ascending" if title == "validation" else "descending")
            self.browser.click(button)
            self.assertEqual(values(), sorted(values(), key=best_first, reverse=True))
            self.assertEqual(page("document.querySelectorAll('th[aria-sort=ascending], th[aria-sort=descending]').length"), 1)

    def domain(self):
        return [float(x) for x in self.browser.evaluate("document.querySelector('figure[data-key=speed]').dataset.domain").split()]

    def test_zoom_by_drag_wheel_keys_and_back(self):
        page = self.open(self.many_page)
        whole = self.domain()
        left, top, width, height = self.browser.box("figure[data-key=loss] .plot")
        self.browser.mouse("mousePressed", left + width * 0.4, top + height / 2)
        self.browser.mouse("mouseMoved", left + width * 0.6, top + height / 2)
        self.browser.mouse("mouseReleased", left + width * 0.6, top + height / 2)
        dragged = self.domain()
        self.assertTrue(3000 < dragged[0] < 4200 and 5500 < dragged[1] < 6500, dragged)
        self.browser.mouse("mouseWheel", left + width / 2, top + height / 2, deltaX=0, deltaY=-100, modifiers=2)
        nearer = self.domain()
        self.assertLess(nearer[1] - nearer[0], 0.85 * (dragged[1] - dragged[0]))
        page("document.querySelector('figure[data-key=loss] .plot').focus()")
        for key, wider in (("-", True), ("+", False)):
            before = self.domain()
            self.browser.key(key)
            after = self.domain()
            self.assertEqual(after[1] - after[0] > before[1] - before[0], wider, key)
        before = self.domain()
        self.browser.key("ArrowRight", modifiers=8)
        self.assertGreater(self.domain()[0], before[0])
        self.browser.key("ArrowRight")
        self.assertRegex(page("document.querySelector('#live').textContent"), r"step [\d,]+\. sweep-1 \d\.\d{4}")
        self.browser.key("0")
        self.assertEqual(self.domain(), whole)
        page("document.querySelector('#controls [aria-label=\"Zoom in\"]').click()")
        self.assertNotEqual(self.domain(), whole)
        for count in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                self.browser.mouse(kind, left + width / 2, top + height / 2, clickCount=count)
        self.assertEqual(self.domain(), whole)

    def test_pointing_reads_values(self):
        page = self.open(self.page)
        left, top, width, height = self.browser.box("figure[data-key=loss] .plot")
        self.browser.mouse("mouseMoved", left + width / 2, top + height / 2, button="none")
        self.assertRegex(page("document.querySelector('figure[data-key=loss] .tip').textContent"), r"^step \d+.*steeper\d+\.\d{4}")
        self.assertLess(page("document.querySelector('figure[data-key=loss] .tip').clientHeight"), height)
        self.browser.screenshot(self.pictures / "pointing.png", whole=False)

    def test_axes(self):
        page = self.open(self.many_page)
        line = lambda: page("document.querySelector('figure[data-key=loss] .line').getAttribute('d')")
        press = lambda text: page(f"[...document.querySelectorAll('#controls button')].find(b => b.textContent === {text!r}).click()")
        by_step = line()
        press("Log")
        self.assertNotEqual(line(), by_step)
        press("Linear")
        press("Tokens")
        self.assertEqual(self.domain()[1], 163840000)
        press("Time")
        self.assertAlmostEqual(self.domain()[1], 10000 * 16384 / 12000, delta=100)
        self.assertIn("hours", page("document.querySelector('figure[data-key=loss] svg').textContent"))

    def test_keys_reach_everything(self):
        page = self.open(self.page)
        wanted = page("[...document.querySelectorAll('a[href], button:not(:disabled), input, summary, [tabindex=\"0\"]')].filter(e => e.checkVisibility()).length")
        page("window.reached = new Set()")
        for _ in range(wanted + 5):
            self.browser.key("Tab")
            page("window.reached.add(document.activeElement)")
        self.assertEqual(page("[...document.querySelectorAll('a[href], button:not(:disabled), input, summary, [tabindex=\"0\"]')]"
                              ".filter(e => e.checkVisibility() && !window.reached.has(e)).map(e => e.outerHTML.slice(0, 80))"), [])
        page("document.querySelector('#legend button').focus()")
        self.browser.key("Enter")
        self.assertEqual(page("document.querySelector('#legend button').getAttribute('aria-pressed')"), "false")

    def test_everything_has_a_name(self):
        self.open(self.page)
        nodes = self.browser.call("Accessibility.getFullAXTree")["nodes"]
        named = {"button", "image", "img", "link", "slider", "region", "columnheader", "rowheader", "heading"}
        nameless = [node for node in nodes if not node.get("ignored") and node.get("role", {}).get("value") in named and not node.get("name", {}).get("value")]
        self.assertEqual(nameless, [])
        self.assertGreater(sum(node.get("role", {}).get("value") in ("image", "img") for node in nodes), 3)

    def test_curves_are_a_table_too(self):
        page = self.open(self.many_page)
        page("document.querySelector('figure[data-key=loss] details').open = true")
        page("new Promise(done => setTimeout(done, 50))")
        self.assertEqual(page("document.querySelectorAll('figure[data-key=loss] tbody tr').length"), 11)
        self.assertEqual(page("document.querySelectorAll('figure[data-key=loss] thead th').length"), 11)
        page("document.querySelector('figure[data-key=\"validation/\"] details').open = true")
        page("new Promise(done => setTimeout(done, 50))")
        self.assertEqual(page("document.querySelectorAll('figure[data-key=\"validation/\"] tbody tr').length"), 20, "few points are all there")

    def test_narrow_dark_and_printed(self):
        for name, file in (("runs", self.page), ("sweep", self.many_page)):
            for width in (1280, 400):
                for dark in (False, True):
                    page = self.open(file, width=width, dark=dark)
                    self.assertEqual(page("document.documentElement.scrollWidth"), width, "no horizontal scrolling")
                    background = [int(x) for x in re.findall(r"\d+", page("getComputedStyle(document.body).backgroundColor"))][:3]
                    ink = [int(x) for x in re.findall(r"\d+", page("getComputedStyle(document.body).color"))][:3]
                    self.assertEqual((max(background) < 40, min(ink) > 200), (dark, dark))
                    self.browser.screenshot(self.pictures / f"{name}-{width}-{'dark' if dark else 'light'}.png")
        printed = self.browser.call("Page.printToPDF", printBackground=False)["data"]
        self.assertGreater(len(printed), 10000)

    def test_text_of_others_stays_text_and_nothing_is_fetched(self):
        page = self.open(self.page)
        page("new Promise(done => setTimeout(done, 300))")
        self.assertIsNone(page("window.hacked"))
        self.assertEqual(self.browser.requests(), [f"file://{self.page}"])
        self.assertEqual(page("document.querySelectorAll('img').length"), 0)
        for place in ("#runs", "#options", "#samples"):
            self.assertIn(SCRIPT if place != "#runs" else EVIL, page(f"document.querySelector('{place}').textContent"))
        alone = self.folder / "alone.html"
        self.eval(self.runs / EVIL, alone)
        self.assertEqual(self.open(alone)("document.title"), EVIL)
        self.assertIsNone(page("window.hacked"))
        self.assertTrue(page("fetch('https://example.org').then(() => false, () => true)"), "the page's own rules forbid it")
        self.browser.events.clear()

    def test_colours_are_told_apart_without_red_or_green_cones(self):
        """The nearest two of ten colours, as people with each kind of dichromacy see them (Machado et al. 2009), in OKLab."""
        import numpy
        rules = self.page.read_text()
        seen = {"none": numpy.eye(3),
                "protanopia": numpy.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
                "deuteranopia": numpy.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
                "tritanopia": numpy.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]])}
        cones = numpy.array([[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566], [0.0883024619, 0.2817188376, 0.6299787005]])
        lab = numpy.array([[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099], [0.0259040371, 0.7827717662, -0.8086757660]])
        colours = re.findall(r"--run\d:#(\w{6});", rules)
        self.assertEqual(len(colours), 20)
        for theme, ten in (("light", colours[:10]), ("dark", colours[10:])):
            rgb = numpy.array([[int(c[i:i + 2], 16) / 255 for i in (0, 2, 4)] for c in ten])
            linear = numpy.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
            for kind, matrix in seen.items():
                place = numpy.cbrt(numpy.clip(numpy.clip(linear @ matrix.T, 0, 1) @ cones.T, 0, None)) @ lab.T
                apart = numpy.linalg.norm(place[:, None] - place[None], axis=2) + numpy.eye(10)
                fsdp_cli.say(f"{theme}, {kind}: the nearest two colours are {apart.min():.3f} apart")
                self.assertGreater(apart.min(), 0.098)

    def test_watch_renews_the_page(self):
        file, log, watch_log = self.folder / "live.html", self.folder / "live.log", self.folder / "watch.log"
        process = fsdp_cli.start("fsdp-finetune", self.train_arguments("live", "--max-steps", 1000000, "--log-every", 1000000), 0, log)
        self.addCleanup(fsdp_cli.end_group, process)
        directory = self.run_directory("live")
        self.addCleanup(fsdp_cli.shutil.rmtree, directory)
        fsdp_cli.wait_for(process, log, lambda: (directory / "job.json").exists())
        watch = fsdp_cli.start("fsdp-eval", ["--runs", directory, "--watch", "--html", file], 0, watch_log)
        self.addCleanup(fsdp_cli.end_group, watch)
        fsdp_cli.wait_for(watch, watch_log, file.exists)
        page = self.open(file)
        self.assertIn("while runs go on every 10 s", page("document.querySelector('#about').textContent"))
        page("document.querySelector('#about button').click()")
        self.assertEqual(page("document.querySelector('#about button').textContent"), "Renew")
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        self.assertEqual(watch.wait(60), 0, watch_log.read_text())
        self.assertIn("stopped", watch_log.read_text())
        self.assertIn('"renew_seconds":0', file.read_text())


if __name__ == "__main__":
    fsdp_cli.main()
