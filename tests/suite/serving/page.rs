//! The page in a real browser: one talks to the model, stops it, changes how it answers, and sees what the
//! server does; by day, by night, on a phone.
//!
//! Pictures of it are written beside the build's other products. Where there is no browser the test is not
//! run; `WEIR_TEST_BROWSER=required`, which CI sets, makes that a failure.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use weir_tests::browser::{Browser, is_there};
use weir_tests::server::Server;

use super::embeddings::program;
use super::{begin, long_one, start, start_slow};

/// Whether the test can be run, or must be.
pub fn can_run() -> bool {
    is_there() || std::env::var("WEIR_TEST_BROWSER").is_ok_and(|how| how == "required")
}

/// Text of the last answer, and how it stands.
const ANSWER: &str = "[...document.querySelectorAll('[data-role=answer]')].at(-1).textContent";
const STATE: &str = "[...document.querySelectorAll('[data-role=exchange]')].at(-1)?.dataset.state";

const QUESTION: &str = "Tell me a story about a dog.";

/// A conversation from the first word on.
pub fn conversation() -> Result<()> {
    if !can_run() {
        println!("serving/page/conversation: skipped, there is no browser");
        return Ok(());
    }
    let server = start(&["--model-name", "tales"])?;
    let browser = open(&server)?;
    stop_an_answer(&browser)?;
    choose_settings(&browser, &server)?;
    look(&browser, "conversation")?;
    // What was said and chosen outlives a reload.
    let said = browser.run(&format!("return {ANSWER};"))?;
    browser.reload()?;
    browser.until("document.querySelector('#state').dataset.state === 'ready'")?;
    ensure!(browser.run(&format!("return {ANSWER};"))? == said, "the conversation is gone");
    let summary = browser.run("return document.querySelector('#settings-summary').textContent;")?;
    ensure!(summary == "temperature 0, max tokens 24", "{summary}");
    nothing_from_elsewhere(&browser, &server)
}

/// What others do shows in the live view.
pub fn live_view() -> Result<()> {
    if !can_run() {
        println!("serving/page/live_view: skipped, there is no browser");
        return Ok(());
    }
    let server = start_slow(&[])?;
    let browser = open(&server)?;
    let slots = "document.querySelector('#slots').ariaValueNow";
    let kept =
        "[...document.querySelectorAll('#cache li')].filter((row) => row.dataset.kept > 0).length";
    ensure!(browser.run(&format!("return {slots};"))? == "0", "slots of nobody");
    let streams = [begin(&server, &long_one())?, begin(&server, &long_one())?];
    browser.until(&format!("{slots} === '2'"))?;
    browser.until(&format!("{kept} === 2"))?;
    browser.until("parseFloat(document.querySelector('#speed').textContent) > 0")?;
    let memory = browser.run("return document.querySelector('#memory-text').textContent;")?;
    ensure!(memory.as_str().is_some_and(|text| text.contains("MiB of ")), "{memory}");
    look(&browser, "live")?;
    drop(streams);
    browser.until(&format!("{slots} === '0'"))?;
    nothing_from_elsewhere(&browser, &server)
}

/// A model that writes nothing is not offered to be talked to.
pub fn embeddings() -> Result<()> {
    if !can_run() {
        println!("serving/page/embeddings: skipped, there is no browser");
        return Ok(());
    }
    let server = Server::start(&program()?, &[])?;
    let browser = open(&server)?;
    let shown = "document.querySelector('#vectors-note').checkVisibility()
        && !document.querySelector('#prompt').checkVisibility()
        && !document.querySelector('#new').checkVisibility()";
    browser.until(shown)?;
    look(&browser, "embeddings")?;
    nothing_from_elsewhere(&browser, &server)
}

fn open(server: &Server) -> Result<Browser> {
    let browser = Browser::start()?;
    browser.resize(1280, 800, false)?;
    browser.prefer("light")?;
    browser.open(&format!("http://{}/", server.address()))?;
    browser.until("document.querySelector('#state').dataset.state === 'ready'")?;
    Ok(browser)
}

/// An answer that comes slowly is seen to grow, and ends where it is told to.
fn stop_an_answer(browser: &Browser) -> Result<()> {
    // A piece of an answer has two hundred bytes or so.
    browser.throttle(Some(2000))?;
    browser.write("#prompt", QUESTION)?;
    browser.click("#send")?;
    let first = browser.until(&format!("{ANSWER}.length"))?;
    let more = browser.until(&format!("{ANSWER}.length > {first} && {ANSWER}.length"))?;
    ensure!(browser.run(&format!("return {STATE};"))? == "running", "it came at once");
    browser.click("#stop")?;
    browser.until(&format!("{STATE} === 'stopped'"))?;
    browser.throttle(None)?;
    let stopped = browser.run(&format!("return {ANSWER}.length;"))?;
    ensure!(stopped.as_u64() >= more.as_u64(), "{stopped} characters of {more} are left");
    browser.until(
        "!document.querySelector('#send').hidden && document.querySelector('#stop').hidden",
    )?;
    let meta = "[...document.querySelectorAll('[data-role=meta]')].at(-1).textContent";
    let meta = browser.run(&format!("return {meta};"))?;
    ensure!(meta.as_str().is_some_and(|text| text.contains("stopped")), "{meta}");
    Ok(())
}

/// With settings of one's own the answer is the one that the server gives for them.
fn choose_settings(browser: &Browser, server: &Server) -> Result<()> {
    browser.click("#new")?;
    browser.click("#open-settings")?;
    browser.write("#setting-temperature", "0")?;
    browser.write("#setting-max_tokens", "24")?;
    look(browser, "settings")?;
    browser.click("#close-settings")?;
    browser.write("#prompt", QUESTION)?;
    // Enter sends.
    browser.write("#prompt", "\u{e007}")?;
    browser.until(&format!("{STATE} === 'done'"))?;
    let messages = json!([{"role": "user", "content": QUESTION}]);
    let body = json!({"messages": messages, "max_tokens": 24, "temperature": 0});
    let whole = server.post_ok("/v1/chat/completions", &body)?;
    let expected = whole["choices"][0]["message"]["content"].as_str().context("an answer")?;
    let shown = browser.run(&format!("return {ANSWER};"))?;
    let shown = shown.as_str().context("a text")?;
    ensure!(shown.trim() == expected.trim(), "{shown:?} is shown instead of {expected:?}");
    Ok(())
}

/// Every look of what is shown: nothing lies beside the screen, and text stands out from its ground.
fn look(browser: &Browser, name: &str) -> Result<()> {
    for (size, width, height) in [("desktop", 1280, 800), ("phone", 390, 844)] {
        browser.resize(width, height, size == "phone")?;
        let live = "document.querySelector('#live').hidden";
        if name == "live" && browser.run(&format!("return {live};"))? == true {
            browser.click("#toggle-live")?;
        }
        let mut grounds = Vec::new();
        for scheme in ["light", "dark"] {
            browser.prefer(scheme)?;
            // Colours and places that move are looked at when they have arrived.
            browser.run(
                "return Promise.all(document.getAnimations()
                .filter((animation) => animation.effect.getComputedTiming().iterations === 1)
                .map((animation) => animation.finished)).then(() => true, () => true);",
            )?;
            let picture =
                STANDARD.decode(browser.picture()?).map_err(|error| anyhow!("{error}"))?;
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join(format!("{name}-{size}-{scheme}.png")), picture)?;
            let seen = browser.run(LOOK)?;
            let place = format!("{name}, {size}, {scheme}: {seen}");
            ensure!(seen["width"] == width, "{place}");
            ensure!(seen["beside"].as_array().is_some_and(Vec::is_empty), "{place}");
            ensure!(seen["faint"].as_array().is_some_and(Vec::is_empty), "{place}");
            ensure!(seen["texts"].as_u64() > Some(5), "{place}");
            grounds.push(seen["ground"].clone());
        }
        ensure!(grounds[0] != grounds[1], "by night it is as by day: {grounds:?}");
    }
    browser.resize(1280, 800, false)?;
    browser.prefer("light")
}

/// Elements that reach beyond the right edge, and texts whose contrast to what is behind them is below 4.5,
/// the least of WCAG 2 for small text.
const LOOK: &str = r#"
const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const luminance = ([red, green, blue]) => [red, green, blue]
  .map((value) => value / 255)
  .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
  .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return [255, 255, 255, 255];
};
const isSeen = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true })
  && !element.closest(".unseen, [disabled], dialog:not([open])")
  && getComputedStyle(element).clipPath === "none";
const seen = [...document.body.querySelectorAll("*")].filter(isSeen);
const name = (element) => element.outerHTML.slice(0, 80);
const texts = seen.filter((element) => [...element.childNodes]
  .some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()));
const contrast = (element) => {
  const [one, other] = [ground(element), rgba(getComputedStyle(element).color)].map(luminance);
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
};
return {
  width: innerWidth,
  beside: document.documentElement.scrollWidth > innerWidth ? ["the document"]
    : seen.filter((element) => element.getBoundingClientRect().right > innerWidth + 0.5).map(name),
  texts: texts.length,
  faint: texts.filter((element) => contrast(element) < 4.5)
    .map((element) => `${contrast(element).toFixed(2)} ${name(element)}`),
  ground: rgba(getComputedStyle(document.body).backgroundColor).join(),
};
"#;

/// All that was loaded came from the server, nothing else may come, and nothing went wrong.
fn nothing_from_elsewhere(browser: &Browser, server: &Server) -> Result<()> {
    let loaded = browser.run(
        "return performance.getEntriesByType('resource').map((entry) => entry.name)
            .filter((name) => !name.startsWith('data:'));",
    )?;
    let origin = format!("http://{}/", server.address());
    let loaded: Vec<&str> =
        loaded.as_array().context("names")?.iter().filter_map(Value::as_str).collect();
    ensure!(loaded.len() > 2, "{loaded:?}");
    ensure!(loaded.iter().all(|name| name.starts_with(&origin)), "{loaded:?}");
    let errors = browser.errors()?;
    ensure!(errors.is_empty(), "{errors:?}");
    // Another address of this machine, which would be reached were it allowed.
    let elsewhere = format!("http://127.0.0.2:{}/", server.address().port());
    let outcome = browser.run(&format!(
        "return new Promise((resolve) => {{
            document.addEventListener('securitypolicyviolation', (event) => resolve(event.blockedURI));
            fetch('{elsewhere}').then(() => resolve('loaded'), () => {{}});
        }});"
    ))?;
    ensure!(outcome.as_str().is_some_and(|uri| uri.starts_with("http://127.0.0.2")), "{outcome}");
    Ok(())
}
