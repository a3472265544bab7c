"""Asks a server what programs ask with OpenAI's own client, and looks at what the client makes of it.

Arguments: address of a server, its key, address of one with a single slot and no queue. The first that is
not as it must be ends the program with a traceback.
"""

import sys
import threading
import time

import openai

ADDRESS, KEY, NARROW = sys.argv[1:]
MESSAGES = [{"role": "user", "content": "Tell me a story about a dog."}]
client = openai.OpenAI(base_url=f"{ADDRESS}/v1", api_key=KEY, max_retries=0, timeout=60)
narrow = openai.OpenAI(base_url=f"{NARROW}/v1", api_key=KEY, max_retries=0, timeout=60)


def refused(kind, status, param, ask):
    """The error that asking gives, which is of this kind and names this field."""
    try:
        ask()
    except kind as error:
        assert error.status_code == status, error
        assert error.param == param, (error.param, param)
        assert error.message, error
        return error
    raise AssertionError(f"{kind} was expected")


def models():
    names = [model.id for model in client.models.list()]
    assert names == ["tales"], names
    assert client.models.retrieve("tales").id == "tales"
    refused(openai.NotFoundError, 404, "model", lambda: client.models.retrieve("other"))


def conversations():
    asked = {"model": "tales", "messages": MESSAGES, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    text = whole.choices[0].message.content
    assert text and whole.choices[0].message.role == "assistant", whole
    assert whole.choices[0].finish_reason == "length", whole
    assert whole.usage.completion_tokens == 24, whole
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0, whole
    pieces = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    streamed = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert streamed == text, (streamed, text)
    assert pieces[-1].usage.total_tokens == whole.usage.total_tokens, pieces[-1]
    assert len(pieces) > 5, "the answer came in one piece"
    several = client.chat.completions.create(**{**asked, "n": 3, "temperature": 1, "seed": 5})
    assert [choice.index for choice in several.choices] == [0, 1, 2], several
    assert len({choice.message.content for choice in several.choices}) > 1, several
    with_logprobs = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    content = with_logprobs.choices[0].logprobs.content
    assert len(content) == 24 and all(len(token.top_logprobs) == 2 for token in content), content
    assert bytes(byte for token in content for byte in token.bytes).decode().strip() == text.strip()
    word = text.split()[3]
    stopped = client.chat.completions.create(**asked, stop=[word])
    assert stopped.choices[0].finish_reason == "stop", stopped
    assert word not in stopped.choices[0].message.content, stopped


def continuations():
    asked = {"model": "tales", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**asked, logprobs=1)
    assert len(whole.choices[0].logprobs.tokens) == 12, whole
    streamed = "".join(p.choices[0].text for p in client.completions.create(**asked, stream=True))
    assert streamed == whole.choices[0].text, (streamed, whole)


def mistakes():
    chat = client.chat.completions.create
    bad = openai.BadRequestError
    refused(bad, 400, "temperature", lambda: chat(model="tales", messages=MESSAGES, temperature=-1))
    refused(bad, 400, "n", lambda: chat(model="tales", messages=MESSAGES, n=9))
    wrong = [{"role": "nobody", "content": "?"}]
    refused(bad, 400, "messages[0].role", lambda: chat(model="tales", messages=wrong))
    refused(openai.NotFoundError, 404, "model", lambda: chat(model="other", messages=MESSAGES))
    stranger = client.with_options(api_key="another")
    refused(openai.AuthenticationError, 401, None, stranger.models.list)


def long_one(asking, **options):
    return asking.completions.create(
        model="recall", prompt="One", max_tokens=8000, extra_body={"ignore_eos": True}, **options
    )


def short_one(asking):
    return asking.completions.create(model="recall", prompt="One", max_tokens=1)


def crowds():
    stream = long_one(narrow, stream=True)
    assert next(iter(stream)).choices[0].index == 0
    full = refused(openai.RateLimitError, 429, None, lambda: short_one(narrow))
    assert full.response.headers["retry-after"] == "1" and full.code == "queue_full", full
    # A client that tries again is answered once another has gone.
    threading.Timer(0.5, stream.close).start()
    patient = narrow.with_options(max_retries=20)
    assert short_one(patient).usage.completion_tokens == 1
    # One that loses its patience leaves its slot to others.
    try:
        long_one(narrow.with_options(timeout=0.5))
    except openai.APITimeoutError:
        pass
    else:
        raise AssertionError("8000 tokens were answered in half a second")
    assert short_one(patient).usage.completion_tokens == 1


for check in [models, conversations, continuations, mistakes, crowds]:
    begin = time.monotonic()
    check()
    print(f"{check.__name__}: {time.monotonic() - begin:.1f} s")
