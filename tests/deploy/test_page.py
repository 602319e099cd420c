"""The page in a real browser: it loads, the slider turns the policy, the path and the numbers change."""

import pytest

from ccpo.deploy.play import Playground
from ccpo.deploy.watching import optimal_actor, trained_actor
from deploy.chromium import Browser, find_chromium, wait_for
from deploy.policies import save_random_policy
from deploy.serving import Server
from deploy.toy import closed_agent, closed_cost
from extras import HAS_BULLET, HAS_MUJOCO, NEEDS_BULLET, NEEDS_MUJOCO

pytestmark = pytest.mark.skipif(not find_chromium(), reason="no Chromium on the PATH; install the package 'chromium'")
COUNT = """((red, green, blue) => {
  const canvas = document.querySelector(".stage canvas");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const wanted = [red, green, blue];
  let hits = 0;
  for (let i = 0; i < pixels.length; i += 4) hits += wanted.every((value, at) => pixels[i + at] === value);
  return hits;
})"""
"""How many pixels of the first side's picture have a colour."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    closed_agent().save(folder / "closed.safetensors")
    actors = [
        optimal_actor("StaticBudget"),
        optimal_actor("BalanceBudget"),
        trained_actor(folder / "closed.safetensors"),
    ]
    if HAS_BULLET:
        actors.append(trained_actor(save_random_policy(folder, "BallCircle", seed=3)))
    if HAS_MUJOCO:
        actors.append(trained_actor(save_random_policy(folder, "SwimmerVelocity", seed=3)))
    server = Server(Playground(actors))
    yield server
    server.stop()


@pytest.fixture
def page(browser, server):
    page = browser.open(f"http://127.0.0.1:{server.port}/")
    page.wait(step(0) + " > 2")
    yield page
    page.close()
    assert browser.exceptions == []


def text(selector, side):
    return f'document.querySelectorAll("{selector}")[{side}].textContent'


def step(side):
    return f'(document.querySelectorAll(".step").length > {side} && Number({text(".step", side)}))'


def picture(side, place=".stage"):
    return f'document.querySelectorAll("{place} canvas")[{side}].toDataURL()'


def choose(page, actor):
    page.evaluate(
        f'(() => {{ const s = document.querySelector(".actor"); s.value = {actor};'
        ' s.dispatchEvent(new Event("change")); })()'
    )


def middle(page, selector, share=0.5, side=0):
    x, y, width, height = page.evaluate(
        f'(() => {{ const r = document.querySelectorAll("{selector}")[{side}].getBoundingClientRect();'
        " return [r.x, r.y, r.width, r.height]; })()"
    )
    return x + 12 + share * (width - 24), y + height / 2


def test_dragging_the_slider_turns_the_policy(page):
    assert page.evaluate(text(".threshold", 0)) == "20"
    page.evaluate('document.getElementById("pause").click()')
    later = f"new Promise((done) => setTimeout(() => done({picture(0)}), 300))"
    settled = page.wait(f"(async () => {{ const now = {picture(0)}; return now === await {later} && now; }})()")
    before = page.evaluate(text(".cost", 0))
    # Threshold 20 lies at 15/95 of the range from 5 to 100.
    page.drag(middle(page, ".slider", 15 / 95), middle(page, ".slider", 76 / 95))
    assert page.evaluate(text(".threshold", 0)) == "81"
    assert page.evaluate(text(".of", 0)) == " of 81"
    assert page.evaluate(picture(0)) == settled

    length = page.evaluate(step(0))
    page.press(".")
    page.wait(f"{step(0)} === {length + 1}")
    # One step at √(81/100) = 0.9 costs 0.81, one at threshold 20 costs 0.2.
    assert float(page.evaluate(text(".cost", 0))) - float(before) == pytest.approx(0.81, abs=0.051)
    assert page.evaluate(picture(0)) != settled


def test_the_budget_runs_down_and_the_dial_turns_the_running_episode(page):
    """What was spent under the first threshold counts against the second, on the page as in the policy."""
    assert page.evaluate(text(".sees", 0)) == "the policy does not see it"
    page.press(" ")
    choose(page, 2)
    page.wait(f"{step(0)} === 0")
    assert page.evaluate(text(".sees", 0)) == ""
    page.wait(f'{text(".left", 0)} === "20"')
    for _ in range(2):
        page.press(".")
    spent = closed_cost(20.0, steps=2)
    page.wait(f'{step(0)} === 2 && {text(".left", 0)} === "{20.0 - spent:.1f}"')
    drawn = page.evaluate(picture(0, ".budget"))
    for _ in range(40):
        page.press("ArrowRight")
    page.wait(f'{text(".left", 0)} === "{60.0 - spent:.1f}" && {picture(0, ".budget")} !== "{drawn}"')
    page.press(".")
    page.wait(f'{step(0)} === 3 && {text(".left", 0)} === "{60.0 - closed_cost(60.0, spent, steps=1):.1f}"')


def test_two_sides_run_from_the_same_start(page):
    assert page.evaluate('document.querySelectorAll(".side").length') == 2
    page.press(" ")
    page.press("r")
    page.wait(f"{step(0)} === 0")
    page.press(".")
    page.wait(f"{step(0)} === 1 && {step(1)} === 1")
    assert [page.evaluate(text(".cost", side)) for side in (0, 1)] == ["0.2", "0.85"]


def test_the_keyboard_is_enough(page):
    page.press("ArrowRight")
    assert page.evaluate(text(".threshold", 0)) == "21"
    page.press("+")
    assert page.evaluate('document.getElementById("speed").value') == "2"
    for sides in (1, 2, 1):  # frames for the former sides are still on their way
        page.press("c")
        page.wait(f'document.querySelectorAll(".side").length === {sides} && {step(0)} > 0')
    page.press(" ")
    assert page.evaluate('document.getElementById("pause").textContent') == "Play"


def test_an_episode_ends_with_a_verdict_and_the_next_begins(page):
    page.evaluate('document.getElementById("speed").value = "8"')
    page.evaluate('document.getElementById("speed").dispatchEvent(new Event("change"))')
    page.wait('!document.querySelector(".verdict").hidden')
    assert page.evaluate(text(".verdict", 0)) == "within the threshold"
    page.wait(f'{text(".cost", 0)} === "20"')
    page.wait(f"{step(0)} > 0 && {step(0)} < 100")


@NEEDS_BULLET
def test_a_task_from_above_leaves_a_trail_in_the_colours_of_its_cost(page):
    choose(page, 3)
    page.wait('document.getElementById("task").textContent === "Ball-Circle"')
    page.press("+"), page.press("+")
    page.wait(f"{COUNT}(0, 114, 178) > 100")
    page.wait(f"Number({text('.cost', 0)}) > 3")
    assert page.evaluate(f"{COUNT}(210, 80, 10)") > 20


@NEEDS_MUJOCO
def test_a_robot_is_drawn_from_the_side_in_the_colour_of_its_cost(page):
    choose(page, 3 + HAS_BULLET)
    page.wait(f'document.getElementById("task").textContent === "Swimmer-Velocity" && {step(0)} > 2')
    page.press(" ")
    page.press("r")
    page.wait(f"{step(0)} === 0")
    page.wait(f"{COUNT}(0, 120, 92) > 400")  # the bodies, not only the head of the speeds
    still = page.evaluate(picture(0))
    page.press(".")
    page.wait(f"{step(0)} === 1")
    assert page.evaluate(picture(0)) != still
    page.press(" ")
    page.wait(f"Number({text('.cost', 0)}) > 3")
    page.wait(f"{COUNT}(210, 80, 10) > 100")


@pytest.mark.parametrize(("width", "height"), [(390, 844), (320, 640)])
def test_a_phone_sees_one_side_and_nothing_sticks_out(browser, server, width, height):
    page = browser.open(f"http://127.0.0.1:{server.port}/", width=width, height=height, phone=True)
    page.wait(step(0) + " > 2")
    assert page.evaluate('document.querySelectorAll(".side").length') == 1
    for _ in range(2):
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.press("c")
    page.close()


def test_a_session_ends_with_its_page(browser, server):
    page = browser.open(f"http://127.0.0.1:{server.port}/")
    page.wait(step(0) + " > 2")
    page.close()
    wait_for(lambda: server.playground.sessions == 0, seconds=5)


def test_a_hidden_page_rests_and_comes_back(browser):
    server = Server(Playground([optimal_actor("StaticBudget")], unwatched_seconds=0.5))
    page = browser.open(f"http://127.0.0.1:{server.port}/")
    page.wait(step(0) + " > 2")
    in_front = browser.open("about:blank", beside=page)
    wait_for(lambda: server.playground.sessions == 0, seconds=10)
    in_front.close()
    wait_for(lambda: server.playground.sessions == 1, seconds=10)
    page.wait(step(0) + " > 2")
    page.close()
    server.stop()


def test_a_page_says_that_the_server_is_gone(browser):
    server = Server(Playground([optimal_actor("StaticBudget")]))
    page = browser.open(f"http://127.0.0.1:{server.port}/")
    page.wait(step(0) + " > 2")
    server.stop()
    page.wait('!document.getElementById("notice").hidden')
    assert "does not answer" in page.evaluate('document.getElementById("notice").textContent')
    page.close()
    browser.exceptions.clear()
