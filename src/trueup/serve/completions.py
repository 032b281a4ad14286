"""One request of the API, from its body to the bytes of its answer, whole or as a stream."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from trueup.schema import TrueupError

from .answer import Piece, Placed
from .engine_thread import Ask
from .idempotency import Head
from .limits import ApiLimits
from .openai_answers import DONE, ChatWriter, Choice, CompletionWriter, Frame, Usage, Writer, event
from .openai_errors import ApiError, api_error, not_found, timed_out
from .openai_requests import ChatRequest, CompletionRequest, parse
from .service import Answer, Service

JSON = (("content-type", "application/json"),)
# Proxies are told to pass a stream on as it comes.
STREAM = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),
)
SEED_HEADER = "x-trueup-seed"  # of the first choice; choice i has the seed i above it


AnyRequest = ChatRequest | CompletionRequest


@dataclass(frozen=True)
class Served:
    """The model as clients see it. `most_tokens` is of prompt and answer together."""

    name: str
    created: int
    most_tokens: int
    fingerprint: str


@dataclass
class Made:
    """An answer on its way. `broken` is set where a stream ended in an error. `end`: so that nothing of it
    runs on, whether or not its chunks were begun, since closing a generator before that runs none of it."""

    head: Head
    chunks: AsyncGenerator[bytes]
    broken: ApiError | None = None
    end: Callable[[], None] = lambda: None


class Completions:
    """Makes answers. `tokenizing` has one thread: prompts become tokens one after the other, as they came."""

    def __init__(self, service: Service, served: Served, limits: ApiLimits, tokenizing: Executor) -> None:
        self._service = service
        self._served = served
        self._limits = limits
        self._tokenizing = tokenizing

    async def chat(self, body: bytes, arrived: float) -> Made:
        asked = parse(ChatRequest, body)
        messages = [message.plain() for message in asked.messages]
        self._require_short(sum(len(message["content"]) for message in messages))
        codec = self._service.codec
        return await self._make(asked, [lambda: codec.chat(messages)], arrived)

    async def plain(self, body: bytes, arrived: float) -> Made:
        asked = parse(CompletionRequest, body)
        return await self._make(asked, [self._prompt(one) for one in asked.prompts], arrived)

    def _prompt(self, prompt: str | list[int]) -> Callable[[], tuple[int, ...]]:
        codec = self._service.codec
        if isinstance(prompt, str):
            self._require_short(len(prompt))
            return lambda: codec.text(prompt)
        return lambda: codec.known(prompt)

    def _require_short(self, characters: int) -> None:
        """Raises ApiError for text that no context holds, before others wait until it has become tokens."""
        if self._service.codec.surely_longer(characters, self._served.most_tokens):
            raise ApiError(
                400,
                f"{characters} characters are more than this model's context of {self._served.most_tokens} "
                "tokens can hold: shorten the prompt",
                code="context_length_exceeded",
            )

    async def _make(
        self,
        asked: AnyRequest,
        prompts: Sequence[Callable[[], tuple[int, ...]]],
        arrived: float,
    ) -> Made:
        """Raises ApiError where there is no answer, and asyncio.CancelledError where nobody wants it."""
        if asked.model != self._served.name:
            raise not_found(asked.model, self._served.name)
        wanted = len(prompts) * asked.choices
        most = min(self._limits.answers, self._service.room)  # more find no room however long they wait
        if not 1 <= wanted <= most:
            param = "n" if asked.choices > 1 else "prompt"
            raise ApiError(
                400,
                f"{wanted} answers are asked for; 1 to {most} at once are given",
                param=param,
                code="invalid_value",
            )
        self._require_known(asked.stop_token_ids or ())
        deadline = asyncio.get_running_loop().time() + self._limits.request_s
        try:
            async with asyncio.timeout_at(deadline):
                self._service.require_open(wanted)  # before work is put into it
                tokens = [await self._tokens(prompt) for prompt in prompts]
                seed = secrets.randbits(31) if asked.seed is None else asked.seed
                answers = await self._service.submit(self._asks(asked, tokens, seed, arrived))
        except TrueupError as error:
            raise api_error(error) from error
        except TimeoutError:
            raise timed_out(self._limits.request_s) from None
        prompts_have = tuple(map(len, tokens))
        job = _Job(answers, prompts_have, self._writer(asked), deadline, self._limits.request_s)
        told = ((SEED_HEADER, str(seed)),)
        if not asked.stream:
            whole = await job.whole()
            return Made(Head(200, (*JSON, *told)), _once(whole))
        made = Made(Head(200, (*STREAM, *told)), _nothing(), end=job.end)
        made.chunks = job.stream(made, with_usage=asked.with_usage)
        return made

    def _require_known(self, stop_token_ids: Sequence[int]) -> None:
        """Raises ApiError for ids that no answer can hold: nothing would ever stop at them."""
        rows = self._service.codec.vocabulary
        wrong = next((token for token in stop_token_ids if not 0 <= token < rows), None)
        if wrong is not None:
            raise ApiError(
                400,
                f"stop_token_ids: {wrong} is no token of this model: its ids are 0 to {rows - 1}",
                param="stop_token_ids",
                code="invalid_value",
            )

    async def _tokens(self, prompt: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, prompt)

    def _asks(
        self,
        asked: AnyRequest,
        prompts: Sequence[tuple[int, ...]],
        seed: int,
        arrived: float,
    ) -> list[Ask]:
        asks = []
        for place, prompt in enumerate(prompts):
            room = self._served.most_tokens - len(prompt)
            most = room if asked.most_tokens is None else asked.most_tokens
            if room < 1 or most > room:
                self._too_long(len(prompt), asked.most_tokens)
            for choice in range(asked.choices):
                sampling = asked.sampling(most, asked.likeliest, seed, place * asked.choices + choice)
                asks.append(Ask(prompt, sampling, asked.stops, arrived))
        return asks

    def _too_long(self, prompt: int, most: int | None) -> None:
        plus = "" if most is None else f" and {most} for the answer"
        raise ApiError(
            400,
            f"This model's maximum context length is {self._served.most_tokens} tokens, and the request "
            f"needs {prompt} for the prompt{plus}: shorten the prompt or ask for fewer tokens",
            code="context_length_exceeded",
        )

    def _writer(self, asked: AnyRequest) -> Writer:
        chat = isinstance(asked, ChatRequest)
        name = ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12)
        frame = Frame(name, int(time.time()), self._served.name, self._served.fingerprint)
        kind = ChatWriter if chat else CompletionWriter
        logprobs = asked.likeliest is not None
        return kind(frame, self._service.codec, logprobs=logprobs, with_usage=asked.with_usage)


class _Job:
    """The answers of one request, being collected: as many to each of its prompts, in order. Whatever ends
    it, none of them is left running."""

    def __init__(
        self,
        answers: list[Answer],
        prompts_have: tuple[int, ...],
        writer: Writer,
        deadline: float,
        most_s: float,
    ) -> None:
        self._answers = answers
        self._prompts_have = prompts_have  # tokens
        self._writer = writer
        self._deadline = deadline
        self._most_s = most_s
        self._last: dict[int, Piece] = {}

    async def whole(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._deadline):
                choices = [await self._collected(index) for index in range(len(self._answers))]
        except TimeoutError:
            raise timed_out(self._most_s) from None
        except TrueupError as error:
            raise api_error(error) from error
        finally:
            self.end()
        return self._writer.whole(choices, self._usage())

    async def _collected(self, index: int) -> Choice:
        texts: list[str] = []
        tokens: list[Placed] = []
        async for piece in self._answers[index]:
            self._last[index] = piece
            texts.append(piece.text)
            tokens += piece.tokens
        return Choice(index, "".join(texts), tuple(tokens), self._last[index].finish or "stop")

    async def stream(self, made: Made, *, with_usage: bool) -> AsyncGenerator[bytes]:
        """Ends in [DONE] always; where something went wrong, with the error in an event before it."""
        try:
            for index in range(len(self._answers)):
                opening = self._writer.opening(index)
                if opening is not None:
                    yield opening
            async for index, piece in self._merged():
                self._last[index] = piece
                for chunk in self._writer.chunk(index, piece):
                    yield chunk
            if with_usage:
                yield self._writer.usage(self._usage())
            yield DONE
        except (TrueupError, TimeoutError) as error:
            late = isinstance(error, TimeoutError)
            made.broken = timed_out(self._most_s) if late else api_error(error)  # type: ignore[arg-type]
            yield event(made.broken.document)
            yield DONE
        finally:
            self.end()

    async def _merged(self) -> AsyncIterator[tuple[int, Piece]]:
        """Pieces of all choices as they come."""
        pieces: asyncio.Queue[tuple[int, Piece | Exception]] = asyncio.Queue()

        async def forward(index: int) -> None:
            try:
                async for piece in self._answers[index]:
                    pieces.put_nowait((index, piece))
            except TrueupError as error:
                pieces.put_nowait((index, error))

        forwarding = [asyncio.create_task(forward(index)) for index in range(len(self._answers))]
        try:
            left = len(forwarding)
            while left:
                async with asyncio.timeout_at(self._deadline):
                    index, piece = await pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                left -= piece.finish is not None
                yield index, piece
        finally:
            for task in forwarding:
                task.cancel()

    def _usage(self) -> Usage:
        """Of a prompt that is cached which no choice computed."""
        choices = len(self._answers) // len(self._prompts_have)
        cached = [self._last[index].cached_tokens for index in range(len(self._answers))]
        return Usage(
            sum(self._prompts_have),
            sum(piece.count for piece in self._last.values()),
            sum(min(cached[at : at + choices]) for at in range(0, len(cached), choices)),
        )

    def end(self) -> None:
        for answer in self._answers:
            answer.cancel()


async def _once(chunk: bytes) -> AsyncGenerator[bytes]:
    yield chunk


async def _nothing() -> AsyncGenerator[bytes]:
    return
    yield b""
