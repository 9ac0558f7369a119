"""The playground in a real browser: headless Chromium against the real server over the noise checkpoint.

    paced engine -> server -> page in Chromium -> the page's own counters and texts, its downloads, its requests

The engine's pace is in the tests' hands, so "while it streams" is a fact and not a race. Pictures of the page are left in
build/playground/. Without a browser (Debian: apt-get install chromium) or without playwright it is skipped, with a warning.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx
import numpy as np
import pytest
import pytest_asyncio
from live import PATIENCE, LiveServer, serving

from orpheus_serving.audio.formats import wav_header
from orpheus_serving.server.playground import FILES, STATIC

PICTURES = Path(__file__).parents[2] / "build" / "playground"
TEXT = "One sentence that is long enough to be spoken for a while, by anybody."
FRAMES = 16  # of a sentence: 1.4 seconds
TAGS = ("laugh", "sigh")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def paced(noise_folder: Path) -> Iterator[LiveServer]:
    """Nothing is generated before `live.call(live.engine.advance, lists)` allows it; a list is a frame."""
    with serving(noise_folder, frames=FRAMES, engine={"paced": True}) as live:
        yield live


@pytest.fixture(scope="module")
def brisk(noise_folder: Path) -> Iterator[LiveServer]:
    with serving(noise_folder, frames=FRAMES) as live:
        yield live


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    try:
        from playwright.async_api import Error, async_playwright
    except ImportError:
        skip("playwright is not installed")
    async with async_playwright() as playwright:
        try:  # a Chromium of the system, or the one that `playwright install chromium` brings
            browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        except Error as error:
            skip(f"no Chromium could be started: {error.message.splitlines()[0]}")
        yield browser
        await browser.close()


def skip(reason: str) -> NoReturn:
    warnings.warn(f"the playground is not tested: {reason}", stacklevel=2)
    pytest.skip(reason)


@pytest_asyncio.fixture(loop_scope="module")
async def visit(browser: Any) -> AsyncIterator[Callable[..., Any]]:
    """`await visit(live)` opens the page as somebody who was never there, and returns a Visitor."""
    visitors: list[Visitor] = []

    async def visit(live: LiveServer, **options: Any) -> Visitor:
        context = await browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"} | options)
        visitor = Visitor(live, await context.new_page())
        visitors.append(visitor)
        await visitor.page.goto(live.url)
        return visitor

    yield visit
    for visitor in visitors:
        await visitor.leave()


class Visitor:
    """A page, and what a person would look at."""

    def __init__(self, live: LiveServer, page: Any) -> None:
        self.live = live
        self.page = page
        self.left = False
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.faults: list[str] = []
        page.set_default_timeout(PATIENCE * 1000)
        page.on("request", self._request)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._console)

    def _request(self, request: Any) -> None:
        self.asked.append(request.url)
        if request.url.endswith("/v1/audio/speech"):
            self.bodies.append(json.loads(request.post_data))

    def _console(self, message: Any) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource"):  # a refused request
            self.faults.append(message.text)

    async def state(self, *states: str) -> None:
        """Wait until the page is in one of the states."""
        await self.page.wait_for_selector(", ".join(f"#page[data-state={state}]" for state in states))

    async def text(self, selector: str) -> str:
        return str(await self.page.inner_text(selector))

    async def until(self, condition: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """Wait for the jitter buffer's counters, {"played", "received"} in samples."""
        async with asyncio.timeout(PATIENCE):
            while True:
                counters = await self.page.evaluate("({ ...document.getElementById('waveform').dataset })")
                counters = {name: int(value) for name, value in counters.items()}
                if counters and condition(counters):
                    return counters
                await asyncio.sleep(0.01)

    async def ready(self) -> None:
        await self.page.wait_for_selector("#voices label")

    async def speak(self, text: str = TEXT) -> None:
        await self.ready()
        await self.page.fill("#text", text)
        await self.page.click("#speak")

    async def download(self) -> tuple[np.ndarray, int]:
        """The samples of the offered file, and its rate."""
        async with self.page.expect_download() as waiting:
            await self.page.click("#download")
        file = await (await waiting.value).path()
        data = file.read_bytes()
        samples = np.frombuffer(data[44:], "<i2")
        rate = int.from_bytes(data[24:28], "little")
        assert data[:44] == wav_header(rate, 2 * len(samples)), "the whole header, sizes included"
        return samples, rate

    async def leave(self) -> None:
        """Close the tab. Nothing may be left at the server, nothing in the console, and nobody else was asked for anything."""
        if self.left:
            return
        self.left = True
        await self.page.context.close()
        self.live.settle()
        assert not self.faults
        assert not [url for url in self.asked if not url.startswith((self.live.url, "blob:"))]

    async def picture(self, name: str) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


async def ask(live: LiveServer, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.post(f"{live.url}/v1/audio/speech", json=body)


def release(live: LiveServer, frames: int = FRAMES + 1) -> None:
    live.call(live.engine.advance, frames)


# ------------------------------------------------------------------------------------------------------------ speaking


async def test_it_is_heard_while_it_streams(paced: LiveServer, visit: Callable[..., Any]) -> None:
    visitor = await visit(paced)
    await visitor.speak()
    await visitor.state("asking")
    release(paced, FRAMES // 2)
    await visitor.state("streaming")
    early = await visitor.until(lambda counters: counters["played"] > 0)
    assert paced.call(lambda: set(paced.engine.active)), "the engine is not done, and there was sound"
    assert await visitor.page.get_attribute("#waveform", "data-played") != "0"
    assert (await visitor.text("#first-byte")).endswith("s")
    release(paced)
    await visitor.state("done")
    late = await visitor.until(lambda counters: counters["played"] == counters["received"])
    assert late["played"] > early["received"] >= early["played"]
    assert (await visitor.text("#status")).startswith("Done: ")


async def test_numbers_and_file_of_an_utterance(brisk: LiveServer, visit: Callable[..., Any]) -> None:
    visitor = await visit(brisk)
    await visitor.page.click("summary")
    await visitor.page.fill("#seed", "7")
    await visitor.speak()
    await visitor.state("done")
    for number in ("#first-byte", "#first-speech"):
        value, unit = (await visitor.text(number)).split()
        assert float(value) > 0
        assert unit in ("s", "ms")
    assert float(await visitor.text("#real-time-factor")) > 0
    assert (await visitor.text("#underruns"))[0].isdigit()

    samples, rate = await visitor.download()
    assert rate == brisk.service.sample_rate
    body = {"input": TEXT, "voice": "noise", "seed": 7, "response_format": "pcm"}
    np.testing.assert_array_equal(samples, np.frombuffer((await ask(brisk, body)).content, "<i2"))
    assert visitor.bodies == [body]
    await visitor.picture("desktop")


async def test_a_replay_has_every_sample_and_no_gap(brisk: LiveServer, visit: Callable[..., Any]) -> None:
    visitor = await visit(brisk)
    await visitor.speak()
    await visitor.state("done")
    spoken, _ = await visitor.download()
    await visitor.speak("Another sentence that is spoken after the first one.")
    await visitor.state("done")
    assert await visitor.page.locator("#utterances li").count() == 2
    await visitor.page.get_by_role("button", name=TEXT).click()
    await visitor.state("playing")
    await visitor.state("done")
    replayed, _ = await visitor.download()
    np.testing.assert_array_equal(replayed, spoken)
    assert len(visitor.bodies) == 2, "a replay asks the server for nothing"
    assert visitor.bodies[0]["seed"] != visitor.bodies[1]["seed"]


# -------------------------------------------------------------------------------------------------------------- stopping


async def test_stop_ends_the_work_at_the_server(paced: LiveServer, visit: Callable[..., Any]) -> None:
    visitor = await visit(paced)
    await visitor.speak()
    release(paced, FRAMES // 2)
    await visitor.until(lambda counters: counters["played"] > 0)
    await visitor.page.click("#stop")
    await visitor.state("stopped")
    assert (await visitor.text("#status")).startswith("Stopped after ")
    paced.until(lambda: not paced.engine.active, "the engine's request is closed")
    heard, _ = await visitor.download()
    assert len(heard) > 0
    paced.settle()


async def test_keys_alone_are_enough(paced: LiveServer, visit: Callable[..., Any]) -> None:
    """Ctrl+Enter in the text speaks, Escape stops, even before the first sound; Tab meets everything in the order of the page."""
    visitor = await visit(paced)
    await visitor.ready()
    await visitor.page.focus("#text")
    await visitor.page.keyboard.press("Control+A")
    await visitor.page.keyboard.type(TEXT)
    await visitor.page.keyboard.press("Control+Enter")
    await visitor.state("asking")
    paced.until(lambda: paced.engine.active, "the engine works")
    await visitor.page.keyboard.press("Escape")
    await visitor.state("stopped")
    paced.until(lambda: not paced.engine.active, "the engine's request is closed")

    met = []
    for _ in range(4):
        await visitor.page.keyboard.press("Tab")
        met.append(await visitor.page.evaluate("document.activeElement.value || document.activeElement.textContent.trim()"))
    assert [met[0], met[1].split()[0], *met[2:]] == ["noise", "Settings", "Speak", "Stop"]
    await visitor.page.focus("input[name=voice]")
    await visitor.page.keyboard.press("ArrowRight")
    await visitor.page.focus("#speak")
    await visitor.page.keyboard.press("Control+Enter")
    release(paced)
    await visitor.state("done")
    assert len(visitor.bodies) == 2, "one key, one request"
    assert visitor.bodies[-1]["voice"] == "hiss"
    assert await visitor.page.get_attribute("#status", "role") == "status"


async def test_a_second_speak_replaces_the_first(paced: LiveServer, visit: Callable[..., Any]) -> None:
    visitor = await visit(paced)
    await visitor.speak()
    await visitor.state("asking")
    paced.until(lambda: len(paced.engine.active) == 1, "the first runs")
    first = paced.call(lambda: set(paced.engine.active))
    await visitor.page.click("#speak")
    paced.until(lambda: paced.engine.active and not first & paced.engine.active, "the second runs instead")
    release(paced)
    await visitor.state("done")
    assert await visitor.page.locator("#utterances li").count() == 1


# --------------------------------------------------------------------------------------------------------------- failing


async def test_a_refusal_is_told_in_the_servers_words(brisk: LiveServer, visit: Callable[..., Any]) -> None:
    visitor = await visit(brisk)
    await visitor.page.click("summary")
    await visitor.page.fill("#temperature", "5")
    await visitor.speak()
    await visitor.state("refused")
    error = (await ask(brisk, visitor.bodies[0])).json()["error"]
    assert await visitor.text("#alert") == error["message"]
    assert await visitor.page.get_attribute("#temperature", "aria-invalid") == "true"
    assert await visitor.page.evaluate("document.activeElement.id") == "temperature"
    await visitor.picture("refused")

    await visitor.page.click("#reset")
    await visitor.page.click("#speak")
    await visitor.state("done")
    assert not await visitor.page.is_visible("#alert")

    await visitor.speak("   ")
    await visitor.state("refused")
    assert await visitor.text("#alert") == "There is nothing to say yet."


async def test_a_connection_that_breaks_midway(noise_folder: Path, visit: Callable[..., Any]) -> None:
    with serving(noise_folder, frames=FRAMES, engine={"paced": True, "fail_after": 7 * (FRAMES // 2)}) as live:
        visitor = await visit(live)
        await visitor.speak()
        release(live, FRAMES // 2)
        await visitor.until(lambda counters: counters["played"] > 0)
        release(live)
        await visitor.state("broken")
        assert "broke off" in await visitor.text("#alert")
        kept, rate = await visitor.download()
        assert len(kept) > rate // 10
        assert "broken off" in await visitor.text("#utterances")
        await visitor.leave()


async def test_a_full_server_says_when_to_try_again(noise_folder: Path, visit: Callable[..., Any]) -> None:
    with serving(noise_folder, frames=FRAMES, engine={"paced": True}, max_active=1, max_queued=0) as live:
        first, second = await visit(live), await visit(live)
        await first.speak()
        live.until(lambda: live.service.active == 1, "the only place is taken")
        await second.speak()
        await second.state("refused")
        assert "Try again in " in await second.text("#alert")
        await first.page.click("#stop")
        for visitor in (first, second):
            await visitor.leave()


async def test_the_key_is_asked_for_where_one_is_needed(noise_folder: Path, brisk: LiveServer, visit: Callable[..., Any]) -> None:
    visitor = await visit(brisk)
    await visitor.ready()
    assert not await visitor.page.is_visible("#key-form")

    with serving(noise_folder, frames=2, api_keys="open-sesame") as live:
        visitor = await visit(live)
        await visitor.page.wait_for_selector("#key-form:visible")
        assert await visitor.page.evaluate("document.activeElement.id") == "key"
        assert not await visitor.page.is_visible("#alert")
        await visitor.picture("key")
        await visitor.page.fill("#key", "wrong")
        await visitor.page.press("#key", "Enter")
        await visitor.page.wait_for_selector("text=The key was not accepted: missing or wrong API key")
        await visitor.page.fill("#key", "open-sesame")
        await visitor.page.press("#key", "Enter")
        await visitor.page.wait_for_selector("#key-form", state="hidden")
        await visitor.speak()
        await visitor.state("done")
        await visitor.page.reload()
        await visitor.ready()  # the tab still has the key
        await visitor.leave()


# --------------------------------------------------------------------------------------------------------------- the page


async def test_emotion_tags_go_where_the_caret_is(
    noise_folder: Path, tmp_path: Path, brisk: LiveServer, visit: Callable[..., Any]
) -> None:
    visitor = await visit(brisk)
    await visitor.ready()
    assert not await visitor.page.is_visible("#tags-row"), "the noise checkpoint has none"

    folder = shutil.copytree(noise_folder, tmp_path / "tagged")
    description = json.loads((folder / "speech.json").read_text())
    (folder / "speech.json").write_text(json.dumps(description | {"tags": TAGS}))
    with serving(folder, frames=2) as live:
        visitor = await visit(live)
        await visitor.ready()
        await visitor.page.fill("#text", "That was it.")
        await visitor.page.evaluate("document.getElementById('text').setSelectionRange(5, 8)")
        await visitor.page.get_by_role("button", name="Insert laugh").click()
        assert await visitor.page.input_value("#text") == "That <laugh> it."
        await visitor.page.press("#text", "Control+End")
        await visitor.page.get_by_role("button", name="Insert sigh").click()
        assert await visitor.page.input_value("#text") == "That <laugh> it. <sigh> "
        await visitor.page.press("#text", "Control+Enter")
        await visitor.state("done")
        assert visitor.bodies[0]["input"] == "That <laugh> it. <sigh> "
        await visitor.leave()


async def test_the_draft_is_there_after_a_reload(brisk: LiveServer, visit: Callable[..., Any]) -> None:
    visitor = await visit(brisk)
    await visitor.ready()
    await visitor.page.fill("#text", "A draft.")
    await visitor.page.check("input[value=hiss]")
    await visitor.page.click("summary")
    await visitor.page.fill("#top_p", "0.5")
    await visitor.page.reload()
    await visitor.ready()
    assert await visitor.page.input_value("#text") == "A draft."
    assert await visitor.page.is_checked("input[value=hiss]")
    assert "top p 0.5" in await visitor.text("summary")


@pytest.mark.parametrize("width", [320, 390])
async def test_a_phone_scrolls_one_way_only(brisk: LiveServer, visit: Callable[..., Any], width: int) -> None:
    visitor = await visit(
        brisk,
        viewport={"width": width, "height": 844},
        is_mobile=True,
        has_touch=True,
        device_scale_factor=2,
        color_scheme="dark",
    )
    await visitor.page.click("summary")
    await visitor.speak("A word that is longer than the whole phone is wide: " + "o" * 120)
    await visitor.state("done")
    scroll, inner = await visitor.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert scroll <= inner == width
    small = await visitor.page.evaluate(
        "[...document.querySelectorAll('button, .chips label')].filter((b) => b.offsetHeight && b.offsetHeight < 36).length"
    )
    assert small == 0, "every button is large enough for a finger"
    await visitor.picture(f"phone-{width}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing(brisk: LiveServer, visit: Callable[..., Any], scheme: str) -> None:
    """Names, roles, contrast and the rest of axe-core's rules, at rest and with everything open."""
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    visitor = await visit(brisk, color_scheme=scheme)
    await visitor.ready()
    before = await axe.run(visitor.page)
    await visitor.speak()
    await visitor.state("done")
    await visitor.page.click("summary")
    await visitor.page.fill("#temperature", "5")
    await visitor.page.click("#speak")
    await visitor.state("refused")
    after = await axe.run(visitor.page)
    await visitor.picture(f"all-open-{scheme}")
    for results in (before, after):
        assert results.violations_count == 0, results.generate_report()


async def test_the_page_depends_on_nobody_else(brisk: LiveServer) -> None:
    async with httpx.AsyncClient(base_url=brisk.url) as client:
        policy = (await client.get("/")).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert not [word for word in ("http", "unsafe", "*", "data:") if word in policy]
        for name in FILES:
            file = await client.get(f"/playground/{name}")
            assert file.status_code == 200
            assert file.content == (STATIC / name).read_bytes()
            assert "https://" not in file.text
        assert (await client.get("/playground/index.js")).status_code == 404
        assert (await client.get("/playground/..%2f__init__.py")).status_code == 404


# ---------------------------------------------------------------------------------------------------- parts of the page


async def test_bytes_may_be_cut_anywhere(brisk: LiveServer, visit: Callable[..., Any]) -> None:
    visitor = await visit(brisk)
    samples = list(range(-300, 300, 7))
    data = list(np.array(samples, "<i2").tobytes())
    draw = random.Random(5)
    for _ in range(20):
        cuts = sorted(draw.choices(range(len(data) + 1), k=12))
        portions = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        got = await visitor.page.evaluate(
            """async (portions) => {
              const { WholeSamples } = await import("./playground/speech.js");
              const whole = new WholeSamples();
              return portions.flatMap((portion) => [...whole.push(Uint8Array.from(portion))]).concat([...whole.rest]);
            }""",
            portions,
        )
        assert got == samples


FILL = """async ({ lead, steps }) => {
  const { JitterBuffer } = await import("./playground/jitter-buffer.js");
  const buffer = new JitterBuffer(lead, 1000);
  const heard = [];
  const events = [];
  for (const step of steps) {
    if (step.samples) step.samples = Int16Array.from(step.samples);
    if (step.fill) {
      const out = new Float32Array(10);
      events.push(buffer.fill(out));
      heard.push(...[...out].map((value) => value * 32768));
    } else buffer.receive(step);
  }
  return { heard, events: events.filter((event) => event), ...buffer.report };
}"""


async def test_the_jitter_buffer(brisk: LiveServer, visit: Callable[..., Any]) -> None:
    """1,000 samples a second, portions of 10, a lead of 15 ms: every sample once, silence only where the network was late."""
    visitor = await visit(brisk)
    fill, end = {"fill": True}, {"end": True}

    async def run(*steps: dict[str, Any]) -> dict[str, Any]:
        return await visitor.page.evaluate(FILL, {"lead": 0.015, "steps": list(steps)})

    smooth = await run({"samples": [1] * 10}, fill, {"samples": [2] * 15}, fill, {"samples": [3] * 10}, fill, end, fill, fill)
    assert smooth["heard"][:45] == [0] * 10 + [1] * 10 + [2] * 15 + [3] * 10
    assert smooth["events"][:2] == ["started", "finished"]
    assert (smooth["played"], smooth["underruns"], smooth["waited"]) == (35, 0, 0)

    dry = await run({"samples": [8] * 20}, fill, fill, fill, {"samples": [8] * 29}, fill, {"samples": [8]}, fill, end, fill, fill)
    assert dry["heard"][:20] == [8] * 20
    assert dry["heard"][20:40] == [0] * 20, "nothing there, then not enough to go on: twice the 15 are asked for"
    assert dry["heard"][40:50] == pytest.approx([0.8 * step for step in range(1, 11)], rel=1e-5), "it comes back without a click"
    assert dry["heard"][50:70] == [8] * 20
    assert (dry["played"], dry["underruns"], dry["waited"]) == (50, 1, 20)

    late_end = await run({"samples": [8] * 20}, fill, fill, fill, end, fill)
    assert late_end["events"] == ["started", "finished"]
    assert (late_end["underruns"], late_end["waited"]) == (0, 0), "a pause that nothing follows is the end"

    stopped = await run({"samples": [8] * 30}, fill, {"stop": True}, fill)
    assert stopped["events"] == ["started", "stopped"]
    assert stopped["heard"][10:] == pytest.approx([8 - 0.8 * step for step in range(1, 11)], abs=1e-5)


async def test_the_audio_thread_plays_what_it_gets(brisk: LiveServer, visit: Callable[..., Any]) -> None:
    """The worklet in an offline context: what comes out of the node is the samples, bit for bit."""
    visitor = await visit(brisk)
    samples = np.random.default_rng(3).integers(-32768, 32768, 5000).tolist()
    heard = await visitor.page.evaluate(
        """async (samples) => {
          const context = new OfflineAudioContext(1, 48000 + samples.length, 24000);
          await context.audioWorklet.addModule("./playground/worklet.js");
          const node = new AudioWorkletNode(context, "jitter-buffer", { numberOfInputs: 0, processorOptions: { lead: 60 } });
          node.connect(context.destination);
          for (let at = 0; at < samples.length; at += 777) {
            node.port.postMessage({ samples: Int16Array.from(samples.slice(at, at + 777)) });
          }
          node.port.postMessage({ end: true }); // only now does it begin, as the lead is long
          // An offline context looks at its messages when it rests.
          for (let time = 0.1; time < 2; time += 0.1) context.suspend(time).then(() => context.resume());
          const out = (await context.startRendering()).getChannelData(0);
          return [...out].map((value) => Math.round(value * 32768));
        }""",
        samples,
    )
    start = next((index for index, value in enumerate(heard) if value), 0)
    assert heard[start : start + len(samples)] == samples
    assert not any(heard[start + len(samples) :])


async def test_plain_http_from_another_machine_has_no_worklet(brisk: LiveServer, visit: Callable[..., Any]) -> None:
    visitor = await visit(brisk)
    await visitor.page.add_init_script("delete BaseAudioContext.prototype.audioWorklet")
    await visitor.page.reload()
    assert await visitor.page.evaluate("new AudioContext().audioWorklet === undefined")
    await visitor.speak()
    await visitor.state("done")
    counters = await visitor.until(lambda counters: counters["played"] > 0)
    assert counters["played"] == counters["received"]
