"use strict";

// ---- Helpers ----

const byId = (id) => document.getElementById(id);

/** Makes an element. Children that are strings become text, never markup: text of the model is safe here. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function makeButton(label, role, onClick, extra = {}) {
  const button = make("button", { type: "button", "data-role": role, ...extra }, label);
  button.addEventListener("click", onClick);
  return button;
}

/** Sets text only where it differs, so that a selection in it survives the poll of every second. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const wholeNumber = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const oneDecimal = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const formatCount = (count) => wholeNumber.format(count);
const formatSpeed = (speed) => (speed < 100 ? oneDecimal : wholeNumber).format(speed);
const plural = (count, noun) => `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;

function formatSeconds(milliseconds) {
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${oneDecimal.format(milliseconds / 1000)} s`;
}

function formatBytes(bytes) {
  const mebibytes = bytes / 2 ** 20;
  return mebibytes < 1024 ? `${formatCount(mebibytes)} MiB` : `${oneDecimal.format(mebibytes / 1024)} GiB`;
}

// A browser may forbid storage altogether; the page then works without a memory.
function readStored(kind, name, fallback) {
  try {
    return JSON.parse(window[kind].getItem(name)) ?? fallback;
  } catch {
    return fallback;
  }
}

function writeStored(kind, name, value) {
  try {
    if (value === null) window[kind].removeItem(name);
    else window[kind].setItem(name, JSON.stringify(value));
  } catch {
    // Full or forbidden: nothing to do about it.
  }
}

/** Tells a screen reader something. Old lines go, so that nobody reads everything a second time there. */
function announce(text) {
  const announcer = byId("announcer");
  announcer.append(make("p", {}, text));
  while (announcer.children.length > 3) announcer.firstChild.remove();
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard API exists only over https and on localhost; a server in the local network has neither.
    const area = make("textarea", { class: "unseen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

function makeCopyButton(textOf, extra) {
  const button = makeButton("Copy", "copy", async () => {
    await copyText(textOf());
    button.focus();
    button.textContent = "Copied";
    announce("Copied");
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }, extra);
  return button;
}

function growToContent(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

// ---- The server ----

/** What is known of the server. */
const server = { model: null, hasChat: true, writes: true };

const access = { key: readStored("sessionStorage", "weir.key", null), question: null };

class ServerError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }

  static async from(response) {
    let message = "";
    try {
      message = (await response.json()).error.message;
    } catch {
      // Not every proxy in between answers in JSON.
    }
    return new ServerError(
      response.status,
      message || `The server answered with status ${response.status}.`,
      secondsFrom(response.headers.get("Retry-After")),
    );
  }
}

/** `Retry-After` is a number of seconds or a date. */
function secondsFrom(retryAfter) {
  if (!retryAfter) return null;
  const seconds = /^\d+$/.test(retryAfter) ? Number(retryAfter) : (Date.parse(retryAfter) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.max(1, Math.ceil(seconds)) : null;
}

function explain(error) {
  if (!(error instanceof ServerError)) {
    // `fetch` tells a refused or lost connection as a TypeError whose text differs from browser to browser.
    return error instanceof TypeError ? "The connection to the server failed." : error.message;
  }
  const lead = { 429: "The server is busy. ", 503: "The server takes no requests now. " }[error.status] ?? "";
  const wait = error.retryAfter ? ` Try again in ${plural(error.retryAfter, "second")}.` : "";
  return lead + error.message + wait;
}

/**
 * `fetch` with the key, if there is one. Asks for a key on 401 and tries again with it; other failures are
 * thrown. Paths are relative, so that the page also works below a prefix of a reverse proxy.
 */
async function request(path, { timeout, ...options } = {}) {
  for (;;) {
    const key = access.key;
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    // The time spent typing a key does not count: each attempt has its own timeout.
    const signal = timeout ? AbortSignal.timeout(timeout) : options.signal;
    const response = await fetch(path, { ...options, headers, signal, cache: "no-store" });
    if (response.ok) return response;
    const error = await ServerError.from(response);
    if (response.status !== 401) throw error;
    // Another request may have got a new key while this one was on its way.
    if (key === access.key && !(await askForKey(key))) throw error;
  }
}

/** Shows the form for the key; false if it was cancelled. Requests that fail meanwhile share the form. */
function askForKey(refusedKey) {
  if (!access.question) {
    const dialog = byId("key-dialog");
    byId("key-text").textContent =
      (refusedKey ? "The server did not accept this key. Enter another one. " : "This server asks for a key. ") +
      "It is kept until you close this tab.";
    byId("key").value = "";
    access.question = new Promise((resolve) => {
      dialog.addEventListener("close", () => {
        access.question = null;
        // Chromium gives the focus back to a text area without a caret, and typing does nothing there.
        promptArea.blur();
        focusPrompt();
        resolve(dialog.returnValue === "use");
      }, { once: true });
    });
    dialog.returnValue = "";
    dialog.showModal();
  }
  return access.question;
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  access.key = byId("key").value.trim();
  // The field must not hold the key any longer than it takes.
  byId("key").value = "";
  writeStored("sessionStorage", "weir.key", access.key);
  byId("key-dialog").close("use");
  resumePolling();
});
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close(""));

/** The name to ask for. The status tells it every second; the list of models does if there is no status. */
async function modelName() {
  if (!server.model) {
    const list = await (await request("v1/models", { timeout: 8000 })).json();
    learnModel(list.data[0].id);
  }
  return server.model;
}

function learnModel(model) {
  server.model = model;
  setText(byId("model"), model);
  setText(byId("welcome-title"), `${model} is ready`);
  document.title = `${model} · Weir`;
}

/**
 * The data of each server-sent event of a response's body. Bytes may be split anywhere: the decoder keeps the
 * beginning of a character, `rest` that of a line, `data` that of an event.
 */
async function* serverEvents(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  for (;;) {
    const { done, value } = await reader.read();
    // A body that ends without the blank line still ends its last event.
    rest += done ? `${decoder.decode()}\n\n` : decoder.decode(value, { stream: true });
    // A carriage return at the very end stays: it may be the first half of CRLF.
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length) yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
      // Other lines are comments (keep-alives) or fields that are of no use here.
    }
    if (done) return;
  }
}

// ---- Text of an answer ----

/**
 * Cuts text into blocks: fenced code, and plain text after each blank line. A plain block keeps its line
 * breaks, so that all blocks one below the other look as the text does.
 */
function splitBlocks(text) {
  const blocks = [];
  let block = null;
  let fence = "";
  for (const line of text.match(/[^\n]*\n|[^\n]+$/g) ?? []) {
    const [, ticks = "", info = ""] = line.match(/^\s*(`{3,})([^`]*)$/) ?? [];
    if (fence) {
      if (ticks.length >= fence.length && !info.trim()) {
        fence = "";
        block = null;
      } else {
        block.text += line;
      }
    } else if (ticks) {
      // The margin of the code stands for the blank lines around it.
      if (blocks.length) blocks.at(-1).text = blocks.at(-1).text.replace(/\n+$/, "");
      fence = ticks;
      block = { kind: "code", language: info.trim(), text: "" };
      blocks.push(block);
    } else if (block) {
      block.text += line;
      if (!line.trim() && block.text.trim()) block = null;
    } else if (line.trim() || blocks.length === 0 || blocks.at(-1).kind === "text") {
      block = { kind: "text", language: "", text: line };
      blocks.push(block);
    }
  }
  return blocks;
}

/** Fills a paragraph: `code` and **bold** get elements, everything else is text as it stands. */
function fillParagraph(paragraph, text) {
  const parts = text.split(/(`[^`\n]+`|\*\*(?=\S)[^*\n]*[^*\s]\*\*)/);
  paragraph.replaceChildren(...parts.map((part, index) => {
    // `split` by a pattern with a group gives what lies between the matches and the matches by turns.
    if (index % 2 === 0) return part;
    return part[0] === "`" ? make("code", {}, part.slice(1, -1)) : make("strong", {}, part.slice(2, -2));
  }));
}

function makeBlock(block) {
  if (block.kind === "text") return make("p");
  const code = make("code");
  const copy = makeCopyButton(() => code.textContent, { "aria-label": "Copy this code" });
  copy.dataset.role = "copy-code";
  return make("div", { class: "code" },
    make("div", { class: "code-head" }, make("span", {}, block.language), copy),
    make("pre", { tabindex: "0" }, code));
}

/**
 * Shows text in `root`, one child per block. Only blocks that differ are touched, so that a selection or the
 * position in a long line of code stays while the answer grows, and a long answer costs no more than a short one.
 */
function showText(root, text) {
  const before = root.shownBlocks ?? [];
  const blocks = splitBlocks(text);
  while (root.children.length > blocks.length) root.lastChild.remove();
  blocks.forEach((block, index) => {
    const old = before[index];
    const sameShape = old && old.kind === block.kind && old.language === block.language;
    if (!sameShape) {
      const element = makeBlock(block);
      if (root.children[index]) root.children[index].replaceWith(element);
      else root.append(element);
    } else if (old.text === block.text) {
      return;
    }
    if (block.kind === "text") fillParagraph(root.children[index], block.text);
    else root.children[index].querySelector("code").textContent = block.text;
  });
  root.shownBlocks = blocks;
}

// ---- Conversation ----

/** One view per exchange: `exchange` is what is kept, the rest are its elements. */
const views = [];

/** The controller of the answer that is being written, or null. */
let running = null;

/** Whether the end of the conversation is in sight and should stay so while the answer grows. */
let following = true;

const newAnswer = () => ({ state: "running", text: "", error: "", finish: "", usage: null, firstToken: null, speed: null });

function addExchange(exchange) {
  const view = {
    exchange,
    question: make("div", { class: "text", "data-role": "question", dir: "auto" }),
    answer: make("div", { class: "text", "data-role": "answer", dir: "auto" }),
    error: make("p", { class: "error", "data-role": "error", role: "alert", hidden: "" }),
    meta: make("p", { class: "meta", "data-role": "meta" }),
    scheduled: false,
    announced: 0,
  };
  showQuestion(view);
  view.copy = makeCopyButton(() => exchange.answer.text);
  view.editAnswer = makeButton("Edit", "edit-answer", () => editAnswer(view), { class: "last-only", "aria-label": "Edit this answer" });
  view.again = makeButton("Regenerate", "regenerate", () => answerLast(), { class: "last-only" });
  const editQuestionButton = makeButton("Edit", "edit-question", () => editQuestion(view), { class: "last-only", "aria-label": "Edit your message" });
  view.questionTurn = make("section", { class: "turn question" },
    make("h2", { class: "who" }, "You"),
    make("div", { class: "body" }, view.question, make("div", { class: "tools" }, editQuestionButton)));
  view.answerTurn = make("section", { class: "turn answer" },
    make("h2", { class: "who" }, "Model"),
    make("div", { class: "body" }, view.answer, view.error,
      make("div", { class: "foot" }, view.meta, make("div", { class: "tools" }, view.copy, view.again, view.editAnswer))));
  // A model that continues text can go on without a new word from you.
  view.questionTurn.hidden = exchange.question === "";
  view.root = make("article", { class: "exchange", "data-role": "exchange" }, view.questionTurn, view.answerTurn);
  views.push(view);
  byId("exchanges").append(view.root);
  byId("welcome").hidden = true;
  showAnswer(view);
  return view;
}

function showQuestion(view) {
  const question = view.exchange.question;
  view.question.textContent = question;
  // A short question stands as a heading; a long one in bold would be hard to read.
  view.question.classList.toggle("long", question.length > 240 || question.includes("\n"));
}

function removeLastExchange() {
  views.pop().root.remove();
  byId("welcome").hidden = views.length > 0;
}

function showAnswer(view) {
  const answer = view.exchange.answer;
  const isRunning = answer.state === "running";
  view.root.classList.toggle("running", isRunning);
  view.root.dataset.state = answer.state;
  view.answer.setAttribute("aria-busy", String(isRunning));
  showText(view.answer, answer.text);
  view.error.hidden = !answer.error;
  setText(view.error, answer.error);
  showMeta(view.meta, describeAnswer(answer));
  view.copy.hidden = answer.text === "";
  view.editAnswer.hidden = answer.text === "";
  setText(view.again, answer.text ? "Regenerate" : "Try again");
  announceSentences(view);
  if (following) scrollToEnd();
}

/** Draws at most once per frame, however fast the tokens come. */
function showAnswerSoon(view) {
  if (view.scheduled) return;
  view.scheduled = true;
  requestAnimationFrame(() => {
    view.scheduled = false;
    showAnswer(view);
  });
}

/** Whole sentences are announced as they come: word by word, a screen reader would stutter. */
function announceSentences(view) {
  const answer = view.exchange.answer;
  const fresh = answer.text.slice(view.announced);
  const ready = answer.state === "running" ? fresh.match(/^[^]*[.!?:\n](?=\s)/)?.[0] ?? "" : fresh;
  view.announced += ready.length;
  if (ready.trim()) announce(ready);
}

/** What there is to tell of an answer, part by part. */
function describeAnswer(answer) {
  if (answer.state === "running") return answer.text ? [] : ["waiting for the first token"];
  const parts = [];
  const usage = answer.usage;
  if (answer.state === "stopped") parts.push("stopped");
  if (answer.edited) parts.push("edited");
  if (usage) parts.push(plural(usage.completion_tokens, "token"));
  if (answer.speed) parts.push(`${formatSpeed(answer.speed)} tokens/s`);
  if (answer.firstToken !== null) parts.push(`first after ${formatSeconds(answer.firstToken)}`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    parts.push(`prompt ${formatCount(usage.prompt_tokens)}${cached ? `, ${formatCount(cached)} cached` : ""}`);
    if (usage.kv_rows_kept !== undefined) {
      parts.push(`${plural(usage.kv_rows_kept, "row")} kept, ${formatCount(usage.kv_rows_dropped)} dropped`);
    }
  }
  if (answer.finish === "length") parts.push("ended at the token limit");
  return parts;
}

/** A line of parts; where it is too long it breaks between them, not inside. */
function showMeta(meta, parts) {
  const line = parts.join(" · ");
  if (meta.textContent === line) return;
  // The dot stays with the part before it, so that no line begins with one.
  const last = parts.length - 1;
  meta.replaceChildren(...parts.flatMap((part, index) => [index ? " " : "", make("span", {}, index < last ? `${part} ·` : part)]));
}

/** The body of the request for the last exchange's answer. */
function requestBody(model) {
  const body = { model, stream: true, stream_options: { include_usage: true }, ...samplingOptions() };
  if (!server.hasChat) {
    body.prompt = views.map(({ exchange }) => exchange.question + exchange.answer.text).join("");
    return body;
  }
  body.messages = settings.system ? [{ role: "system", content: settings.system }] : [];
  for (const { exchange } of views) {
    // A question without an answer is left out: templates want the roles to alternate.
    const isLast = exchange === views.at(-1).exchange;
    if (!isLast && !exchange.answer.text) continue;
    body.messages.push({ role: "user", content: exchange.question });
    if (!isLast) body.messages.push({ role: "assistant", content: exchange.answer.text });
  }
  return body;
}

/** Asks for the last exchange's answer, anew if there is one. */
async function answerLast() {
  if (running) return;
  closeEditor();
  const view = views.at(-1);
  const answer = newAnswer();
  const controller = new AbortController();
  view.exchange.answer = answer;
  view.announced = 0;
  following = true;
  setRunning(controller);
  showAnswer(view);
  saveConversation();
  try {
    await readAnswer(view, answer, controller.signal);
    answer.state = "done";
  } catch (error) {
    answer.state = controller.signal.aborted ? "stopped" : "failed";
    if (answer.state === "failed") answer.error = explain(error);
  }
  // A new conversation may have begun while this answer was being stopped.
  if (running === controller) setRunning(null);
  showAnswer(view);
  saveConversation();
}

async function readAnswer(view, answer, signal) {
  const started = performance.now();
  let firstAt = null;
  let lastAt = null;
  let complete = false;
  const response = await request(server.hasChat ? "v1/chat/completions" : "v1/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(requestBody(await modelName())),
    signal,
  });
  for await (const data of serverEvents(response.body)) {
    if (data === "[DONE]") {
      complete = true;
      continue;
    }
    const event = parseEvent(data);
    if (event.error) throw new ServerError(event.error.code, event.error.message);
    const choice = event.choices?.[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    if (text) {
      lastAt = performance.now();
      firstAt ??= lastAt;
      answer.firstToken = firstAt - started;
      answer.text += text;
      showAnswerSoon(view);
    }
    answer.finish = choice?.finish_reason ?? answer.finish;
    answer.usage = event.usage ?? answer.usage;
  }
  if (!complete) throw new Error("The connection ended before the answer did.");
  // The first token waits for the prompt; the speed is that of the tokens after it.
  const later = (answer.usage?.completion_tokens ?? 0) - 1;
  if (later > 0 && lastAt > firstAt) answer.speed = later / ((lastAt - firstAt) / 1000);
}

function parseEvent(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new Error("The answer broke off: its last part did not arrive whole.");
  }
}

function setRunning(controller) {
  const stopHadFocus = document.activeElement === byId("stop");
  running = controller;
  byId("send").hidden = controller !== null;
  byId("stop").hidden = controller === null;
  // A hidden button loses the focus, and the keyboard its place.
  if (stopHadFocus || document.activeElement === document.body) focusPrompt();
}

const stopAnswer = () => running?.abort();

function startNewConversation() {
  closeEditor();
  stopAnswer();
  if (running) setRunning(null);
  while (views.length) removeLastExchange();
  saveConversation();
  following = true;
  showEnd();
  byId("prompt").focus();
}

/** Closes the editor that is open, if one is: there is one at most, and none while an answer is written. */
let closeEditor = () => {};

/** Puts a form in the place of a text. `onSave` gets the new text. */
function editInPlace(turn, shown, text, saveLabel, onSave) {
  if (running) return;
  closeEditor();
  const area = make("textarea", { rows: "1", "aria-label": "Text", "data-role": "editor" });
  const form = make("form", { class: "editor" }, area, make("div", {},
    make("button", { type: "submit", class: "strong", "data-role": "editor-save" }, saveLabel),
    makeButton("Cancel", "editor-cancel", () => closeEditor(), { class: "outlined" })));
  closeEditor = () => {
    closeEditor = () => {};
    form.remove();
    shown.hidden = false;
    turn.classList.remove("editing");
    focusPrompt();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!area.value.trim()) return;
    closeEditor();
    onSave(area.value);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeEditor();
  });
  area.addEventListener("input", () => growToContent(area));
  area.value = text;
  turn.classList.add("editing");
  shown.hidden = true;
  shown.before(form);
  growToContent(area);
  area.focus();
}

function editQuestion(view) {
  editInPlace(view.questionTurn, view.question, view.exchange.question, "Send again", (text) => {
    view.exchange.question = text;
    showQuestion(view);
    answerLast();
  });
}

function editAnswer(view) {
  const answer = view.exchange.answer;
  editInPlace(view.answerTurn, view.answer, answer.text, "Save", (text) => {
    answer.text = text;
    answer.edited = true;
    view.announced = text.length;
    showAnswer(view);
    saveConversation();
  });
}

// The conversation outlives a reload, not the tab.
function saveConversation() {
  writeStored("sessionStorage", "weir.conversation", views.length ? views.map((view) => view.exchange) : null);
}

function restoreConversation() {
  for (const exchange of readStored("sessionStorage", "weir.conversation", [])) {
    if (exchange.answer.state === "running") exchange.answer.state = "stopped";
    // What was said before the reload is there to be read, not news.
    addExchange(exchange).announced = Infinity;
  }
  byId("announcer").replaceChildren();
}

const conversation = byId("conversation");

function scrollToEnd() {
  conversation.scrollTop = conversation.scrollHeight;
}

function showEnd() {
  const distance = conversation.scrollHeight - conversation.clientHeight - conversation.scrollTop;
  following = distance < 48;
  byId("to-end").hidden = distance < 160;
}

conversation.addEventListener("scroll", showEnd, { passive: true });
// A conversation that has not begun is read from its first line.
new ResizeObserver(() => { if (following && views.length) scrollToEnd(); }).observe(conversation);
byId("to-end").addEventListener("click", () => {
  scrollToEnd();
  focusPrompt();
});

// ---- Composer ----

const promptArea = byId("prompt");

/** Not on a touch screen: there the focus brings up the keyboard, over the answer. */
function focusPrompt() {
  if (!matchMedia("(pointer: coarse)").matches) promptArea.focus();
}

function send() {
  const text = promptArea.value;
  const canGoOn = !server.hasChat && views.length > 0 && text === "";
  if (running || !server.writes || (!text.trim() && !canGoOn)) return;
  promptArea.value = "";
  growToContent(promptArea);
  addExchange({ question: text, answer: newAnswer() });
  answerLast();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
promptArea.addEventListener("input", () => growToContent(promptArea));
promptArea.addEventListener("keydown", (event) => {
  // Enter that ends the composition of a character (Chinese, Japanese, Korean) does not send.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) stopAnswer();
});
byId("stop").addEventListener("click", stopAnswer);
byId("new").addEventListener("click", startNewConversation);

/**
 * A model without a chat template continues text: other words, the same controls. One that gives embeddings
 * cannot be talked to: a sentence in their place.
 */
function showMode() {
  byId("box").hidden = !server.writes;
  byId("new").hidden = !server.writes;
  byId("vectors-note").hidden = server.writes;
  byId("mode-note").hidden = server.hasChat || !server.writes;
  promptArea.placeholder = server.hasChat ? "Write a message" : "Write the beginning of a text";
  setText(byId("prompt-label"), server.hasChat ? "Message" : "Text to continue");
  setText(byId("send"), server.hasChat ? "Send" : "Continue");
  byId("setting-system").disabled = !server.hasChat;
}

// ---- Settings ----

/** `preset` is what the field shows when it is empty and the server tells no default. */
const NUMBER_SETTINGS = [
  { name: "temperature", label: "Temperature", hint: "0 takes the likeliest token. More gives more variety.", min: 0, max: 5, step: "any" },
  { name: "top_p", label: "Top-p", hint: "Keeps the likeliest tokens up to this share.", min: 0, max: 1, step: "any" },
  { name: "top_k", label: "Top-k", hint: "Keeps this many tokens. 0 keeps all.", min: 0, max: 1000000, step: 1 },
  { name: "min_p", label: "Min-p", hint: "Drops tokens below this share of the likeliest one.", min: 0, max: 1, step: "any" },
  { name: "repetition_penalty", label: "Repetition penalty", hint: "Above 1, tokens used before become less likely.", min: 0.01, max: 10, step: "any" },
  { name: "max_tokens", label: "Max tokens", hint: "The most an answer may have.", min: 1, max: 10000000, step: 1, preset: "no limit" },
  { name: "seed", label: "Seed", hint: "The same seed draws the same answer.", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, preset: "none" },
];

/** What the user wrote, by name; a name that is absent or empty leaves the choice to the model. */
let settings = readStored("localStorage", "weir.settings", {});

const settingField = (name) => byId(`setting-${name}`);

function buildSettings() {
  for (const { name, label, hint, min, max, step } of NUMBER_SETTINGS) {
    byId("number-fields").append(make("div", { class: "field" },
      make("div", {}, make("label", { for: `setting-${name}` }, label), make("p", { class: "hint", id: `hint-${name}` }, hint)),
      make("input", { id: `setting-${name}`, name, type: "number", min, max, step, "aria-describedby": `hint-${name}`, autocomplete: "off" })));
  }
  fillSettings();
}

function fillSettings() {
  for (const field of byId("settings-form").elements) {
    if (field.name) field.value = settings[field.name] ?? "";
  }
  showSettings();
}

/** The model's defaults stand in the empty fields. */
function showDefaults(defaults) {
  for (const { name, preset } of NUMBER_SETTINGS) {
    settingField(name).placeholder = defaults[name] === undefined ? preset ?? "default" : `default ${defaults[name]}`;
  }
}

function showSettings() {
  const chosen = NUMBER_SETTINGS.filter(({ name }) => settings[name] !== undefined)
    .map(({ name, label }) => `${label.toLowerCase()} ${settings[name]}`);
  if (settings.stop) chosen.push("stop strings");
  if (settings.system) chosen.push("system message");
  setText(byId("settings-summary"), chosen.join(", ") || "model's defaults");
}

/** The settings as the server takes them. */
function samplingOptions() {
  const options = {};
  for (const { name } of NUMBER_SETTINGS) {
    if (settings[name] !== undefined) options[name] = Number(settings[name]);
  }
  const stop = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) options.stop = stop.map((text) => text.replaceAll("\\n", "\n"));
  return options;
}

byId("settings-form").addEventListener("input", () => {
  settings = {};
  for (const field of byId("settings-form").elements) {
    // A number that is out of range is marked in the form and not used.
    if (field.name && field.value !== "" && field.validity.valid) settings[field.name] = field.value;
  }
  writeStored("localStorage", "weir.settings", settings);
  showSettings();
});
byId("settings-form").addEventListener("submit", (event) => {
  // The browser has checked the fields before this event comes.
  event.preventDefault();
  byId("settings").close();
});
byId("reset-settings").addEventListener("click", () => {
  settings = {};
  writeStored("localStorage", "weir.settings", settings);
  fillSettings();
});
byId("open-settings").addEventListener("click", () => {
  byId("settings").showModal();
  // A field would bring up the keyboard of a phone at once.
  byId("settings-title").focus();
});
byId("settings").addEventListener("click", (event) => {
  // A click on the backdrop counts as one on the dialog itself; its content covers the rest of it.
  if (event.target === byId("settings")) byId("settings").close();
});

// ---- Live view ----

const POLL_EVERY = 1000;
const POLL_LONGEST = 15000;
const SPEEDS_SHOWN = 60;

const poll = { timer: 0, failures: 0, busy: false, speeds: [] };

/** Asks for the status, shows it and comes again; rests while the page is hidden, slows down on errors. */
async function pollStatus() {
  clearTimeout(poll.timer);
  if (document.hidden || poll.busy) return;
  poll.busy = true;
  let status = null;
  try {
    status = await (await request("status", { timeout: 8000 })).json();
    poll.failures = 0;
  } catch (error) {
    poll.failures += 1;
    showFailure(error);
  }
  poll.busy = false;
  // Without a key there is no use in asking again: the notice has a button for it.
  if (byId("enter-key").hidden) {
    poll.timer = setTimeout(pollStatus, Math.min(POLL_EVERY * 2 ** poll.failures, POLL_LONGEST));
  }
  if (status) showStatus(status);
}

document.addEventListener("visibilitychange", pollStatus);
byId("enter-key").addEventListener("click", resumePolling);

/** The status was not asked for while a key was missing. */
function resumePolling() {
  byId("enter-key").hidden = true;
  pollStatus();
}

function showState(state, text, notice = "") {
  byId("state").dataset.state = state;
  byId("state").title = text;
  setText(byId("state-text"), text);
  setText(byId("notice-text"), notice);
  byId("notice").hidden = notice === "";
  byId("enter-key").hidden = state !== "key";
  byId("live").classList.toggle("stale", state === "unreachable" || state === "key");
}

function showFailure(error) {
  if (error instanceof ServerError && error.status === 401) {
    showState("key", "Key needed", "The server asks for an API key.");
  } else if (error instanceof ServerError) {
    showState("unreachable", "No status", `The server does not tell its status. ${explain(error)}`);
  } else {
    showState("unreachable", "Unreachable", "The server cannot be reached. The page keeps trying.");
  }
}

function showStatus(status) {
  learnModel(status.model);
  server.hasChat = status.has_chat;
  server.writes = status.gives === "text";
  showMode();
  showDefaults(status.sampling ?? {});
  const { running: taken, total, waiting } = status.slots;
  const waitingText = waiting ? `, ${formatCount(waiting)} waiting` : "";
  if (status.draining) {
    showState("draining", "Shutting down", "The server is shutting down. It finishes the answers that are running.");
  } else {
    showState(taken ? "running" : "ready", taken ? `${taken} of ${total} running${waitingText}` : "Ready");
  }
  showSlots(taken, total, waiting);
  showCache(status.cache);
  showSpeed(status.tokens_per_second);
  showMemory(status.memory);
  setText(byId("welcome-facts"), `It reads up to ${plural(status.context, "token")} and answers ${plural(total, "request")} at a time.`);
  setText(byId("machine"), `Weir ${status.version} · ${status.isa} · ${plural(status.threads, "thread")}\nContext of ${plural(status.context, "token")}`);
}

function setMeter(meter, value, max, text) {
  meter.setAttribute("aria-valuenow", value);
  meter.setAttribute("aria-valuemax", max);
  meter.setAttribute("aria-valuetext", text);
}

function setFill(bar, value, max) {
  bar.firstChild.style.width = `${max > 0 ? Math.min(100, 100 * value / max) : 0}%`;
}

/** Gives `list` as many children as there are items, so that those that stay can move smoothly. */
function matchChildren(list, count, makeChild) {
  while (list.children.length > count) list.lastChild.remove();
  while (list.children.length < count) list.append(makeChild());
}

function showSlots(taken, total, waiting) {
  const slots = byId("slots");
  const text = `${taken} of ${total} running${waiting ? `, ${waiting} waiting` : ""}`;
  // More cells than this would be too thin to see; each then stands for several slots.
  const cells = Math.min(total, 64);
  matchChildren(slots, cells, () => make("i"));
  [...slots.children].forEach((cell, index) => cell.classList.toggle("taken", index < taken * cells / total));
  setMeter(slots, taken, total, text);
  setText(byId("slots-text"), text);
}

function makeSlotRow() {
  const bar = make("div", { class: "bar", role: "meter", "aria-valuemin": "0" }, make("i"));
  return make("li", { class: "slot-row", "data-role": "slot" }, make("span"), bar, make("span"), make("span"));
}

function showCache(cache) {
  const list = byId("cache");
  const rooms = new Set(cache.map(({ rows }) => rows));
  const [room] = rooms;
  setText(byId("cache-text"), rooms.size === 1 ? `${plural(room, "row")} per slot` : "");
  matchChildren(list, cache.length, makeSlotRow);
  cache.forEach(({ slot, rows, kept, dropped }, index) => {
    const row = list.children[index];
    const [name, bar, keptText, droppedText] = row.children;
    Object.assign(row.dataset, { slot, rows, kept, dropped });
    row.classList.toggle("free", kept === 0);
    row.classList.toggle("over", dropped > 0);
    setText(name, String(slot));
    setFill(bar, kept, rows);
    bar.setAttribute("aria-label", `Slot ${slot}`);
    setMeter(bar, kept, rows, `${kept} of ${rows} rows kept, ${dropped} dropped`);
    setText(keptText, kept ? formatCount(kept) : "–");
    setText(droppedText, dropped ? formatCount(dropped) : "–");
  });
}

function showSpeed({ prompt, completion }) {
  setText(byId("speed"), formatSpeed(completion));
  setText(byId("prompt-speed"), `prompts ${formatSpeed(prompt)} tokens/s`);
  poll.speeds = [...poll.speeds, completion].slice(-SPEEDS_SHOWN);
  const peak = Math.max(...poll.speeds);
  setText(byId("spark-text"), `Highest of the last minute: ${formatSpeed(peak)}`);
  // The newest value stands at the right edge; older ones move to the left, one unit a poll.
  const first = SPEEDS_SHOWN - poll.speeds.length;
  const points = poll.speeds.map((speed, index) => `${first + index},${(20 - 19 * speed / (peak || 1)).toFixed(2)}`);
  byId("spark-line").setAttribute("d", `M${points.join("L")}`);
  byId("spark-area").setAttribute("d", `M${first},20L${points.join("L")}L${SPEEDS_SHOWN - 1},20Z`);
}

function showMemory({ resident_bytes: resident, ceiling_bytes: ceiling }) {
  const text = `${formatBytes(resident)} of ${formatBytes(ceiling)}`;
  setFill(byId("memory"), resident, ceiling);
  setMeter(byId("memory"), resident, ceiling, text);
  setText(byId("memory-text"), text);
}

function showLive(open) {
  byId("live").hidden = !open;
  byId("toggle-live").setAttribute("aria-expanded", String(open));
}

byId("toggle-live").addEventListener("click", () => showLive(byId("live").hidden));
// Beside the conversation there is room for the live view, above it there is not.
const roomForLive = matchMedia("(min-width: 68.0625rem)");
roomForLive.addEventListener("change", () => showLive(roomForLive.matches));

// ---- Start ----

buildSettings();
showDefaults({});
showLive(roomForLive.matches);
restoreConversation();
focusPrompt();
pollStatus();
