"""Asks a gateway with the official client and prints a JSON line for each answer.

client.py BASE-URL MODEL TEXT
"""

import asyncio
import json
import sys

import openai


def show(name, **values):
    print(json.dumps({"name": name, **values}), flush=True)


def usage(u):
    details = u.prompt_tokens_details
    return {"prompt": u.prompt_tokens, "completion": u.completion_tokens, "cached": details.cached_tokens or 0 if details else 0}


def collect(stream, text_of):
    text, finish, counted = "", "", None
    for event in stream:
        for choice in event.choices:
            text += text_of(choice) or ""
            finish = choice.finish_reason or finish
        counted = event.usage or counted
    return {"text": text, "finish": finish, **usage(counted)}


def failing(name, call):
    try:
        call()
    except openai.APIStatusError as e:
        show(name, error=type(e).__name__, status=e.status_code, param=e.param or "")
    else:
        show(name, error="none")


def main(base_url, model, text):
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60)
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "Who opens the gate?"}]
    ask = {"model": model, "messages": messages, "max_tokens": 20}

    show("models", models=[m.id for m in client.models.list()])
    answer = client.chat.completions.create(**ask)
    choice = answer.choices[0]
    show("chat", text=choice.message.content, finish=choice.finish_reason, **usage(answer.usage))
    stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    show("chat stream", **collect(stream, lambda c: c.delta.content))
    show("chat again", **usage(client.chat.completions.create(**ask).usage))

    async def concurrently():
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=60) as c:
            return (await asyncio.gather(*(c.chat.completions.create(**ask) for _ in range(8))))[-1]

    answer = asyncio.run(concurrently())
    choice = answer.choices[0]
    show("chat async", text=choice.message.content, finish=choice.finish_reason, **usage(answer.usage))

    prompt = {"model": model, "prompt": text, "max_tokens": 20}
    answer = client.completions.create(**prompt)
    show("completion", text=answer.choices[0].text, finish=answer.choices[0].finish_reason, **usage(answer.usage))
    stream = client.completions.create(**prompt, stream=True, stream_options={"include_usage": True})
    show("completion stream", **collect(stream, lambda c: c.text))

    failing("unknown model", lambda: client.chat.completions.create(**{**ask, "model": "no-such-model"}))
    failing("bad body", lambda: client.chat.completions.create(**{**ask, "messages": "none"}))
    failing("bad value", lambda: client.chat.completions.create(**{**ask, "temperature": -1}))


main(*sys.argv[1:])
