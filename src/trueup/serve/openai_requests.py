"""What clients of OpenAI's API may ask, and what is refused: fields unknown, or known and not done here.

Fields that change nothing of the answer (user, metadata, store, …) are taken and ignored; fields that would
change it are refused unless they are off. `top_k`, `ignore_eos` and `stop_token_ids` are vLLM's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .openai_errors import ApiError
from .request import Sampling

MOST_STOPS = 4
MOST_STOP_CHARACTERS = 1000  # of one: each is looked for at the end of the text after every token
MOST_STOP_TOKENS = 128
SEEDS = 2**63

Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARACTERS)]
Asked = TypeVar("Asked", bound="Common")


def is_off(value: Any) -> bool:
    """Whether a field's value asks for nothing; 0 is no way to say so."""
    return value is None or value is False or value in ([], {})


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class StreamOptions(_Asked):
    include_usage: bool = False
    include_obfuscation: bool | None = None  # ignored: nothing is added to chunks


class TextPart(_Asked):
    type: Literal["text"]
    text: str


class Message(_Asked):
    """What an answer's message has beside its text is taken from an assistant, so that an answer can be sent
    back as it came."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None
    name: str | None = None  # ignored: templates have no place for it
    # an assistant's alone
    refusal: str | None = None  # what was said instead of an answer
    # refused unless off
    annotations: Any = None
    audio: Any = None
    function_call: Any = None
    tool_calls: Any = None

    @model_validator(mode="after")
    def _has_one_text(self) -> Message:
        if self.role != "assistant":
            for field in ("refusal", *self.refused()):
                if field in self.model_fields_set:
                    raise ValueError(f"{field}|the field is for messages of the assistant")
        if self.content is None and self.refusal is None:
            raise ValueError("content|text is missing")
        if self.content and self.refusal:
            raise ValueError("refusal|a message has content or a refusal, not both")
        return self

    def refused(self) -> dict[str, bool]:
        """As `Common.refused`."""
        return {
            "annotations": not is_off(self.annotations),
            "audio": not is_off(self.audio),
            "function_call": not is_off(self.function_call),
            "tool_calls": not is_off(self.tool_calls),
        }

    def plain(self) -> dict[str, str]:
        """As chat templates take it; `developer` is the newer word for `system`, and a refusal is what was
        said."""
        said = self.content or self.refusal or ""
        text = said if isinstance(said, str) else "".join(part.text for part in said)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class Common(_Asked):
    """Fields of both kinds of request."""

    model: str
    n: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-SEEDS, lt=SEEDS)] | None = None
    stop: Text | Annotated[list[Text], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=MOST_STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    # taken and ignored
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    # refused unless off
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    @model_validator(mode="after")
    def _options_have_a_stream(self) -> Common:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options|the field is for stream: true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def refused(self) -> dict[str, bool]:
        """Field -> whether it asks for what is not done here."""
        return {
            "presence_penalty": bool(self.presence_penalty),
            "frequency_penalty": bool(self.frequency_penalty),
            "logit_bias": bool(self.logit_bias),
        }

    def sampling(self, max_tokens: int, logprobs: int | None, seed: int, choice: int) -> Sampling:
        """Of one of the choices: each has a seed of its own, and the first the one that was asked for."""
        top_p = 1.0 if self.top_p is None else self.top_p
        top_k = max(0, self.top_k or 0)
        if top_p == 0:  # the smallest share there is: the likeliest token
            top_p, top_k = 1.0, 1
        return Sampling(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=top_k,
            top_p=top_p,
            seed=(seed + choice) % SEEDS,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
        )


class ChatRequest(Common):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    # taken and ignored
    parallel_tool_calls: bool | None = None
    # refused unless off
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    web_search_options: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens|give max_completion_tokens alone: they mean the same")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs|the field is for logprobs: true")
        return self

    @property
    def most_tokens(self) -> int | None:
        """None: as many as the context has room for."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def likeliest(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def refused(self) -> dict[str, bool]:
        plain = self.response_format is None or self.response_format == {"type": "text"}
        return {
            **super().refused(),
            **self._refused_of_messages(),
            "tools": not is_off(self.tools),
            "tool_choice": not (is_off(self.tool_choice) or self.tool_choice in ("none", "auto")),
            "functions": not is_off(self.functions),
            "function_call": not (is_off(self.function_call) or self.function_call in ("none", "auto")),
            "response_format": not plain,
            "modalities": not (is_off(self.modalities) or self.modalities == ["text"]),
            "audio": not is_off(self.audio),
            "prediction": not is_off(self.prediction),
            "reasoning_effort": self.reasoning_effort not in (None, "none"),
            "verbosity": self.verbosity not in (None, "medium"),
            "web_search_options": self.web_search_options is not None,
        }

    def _refused_of_messages(self) -> dict[str, bool]:
        return {
            f"messages.[{place}].{field}": refused
            for place, message in enumerate(self.messages)
            for field, refused in message.refused().items()
        }


class CompletionRequest(Common):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    # refused unless off
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None

    @property
    def most_tokens(self) -> int:
        return self.max_tokens if self.max_tokens is not None else 16  # OpenAI's default

    @property
    def likeliest(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each as text or tokens; an empty list is one without tokens."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[int(token) for token in self.prompt if isinstance(token, int)]]
        return [one for one in self.prompt if isinstance(one, str | list)] or [[]]

    def refused(self) -> dict[str, bool]:
        return {
            **super().refused(),
            "echo": bool(self.echo),
            "best_of": self.best_of is not None and self.best_of != self.choices,
            "suffix": bool(self.suffix),
        }


def parse(kind: type[Asked], body: bytes) -> Asked:
    """Raises ApiError 400, which names the field."""
    try:
        asked = kind.model_validate_json(body)
    except ValidationError as error:
        raise _explained(error) from None
    for field, refused in asked.refused().items():
        if refused:
            raise ApiError(
                400,
                f"{field} is not supported by this server; leave it out",
                param=field,
                code="unsupported_parameter",
            )
    return asked


def _explained(error: ValidationError) -> ApiError:
    first = min(error.errors(), key=_far_off)
    param = ".".join(f"[{part}]" if isinstance(part, int) else part for part in _place(first["loc"]))
    match first["type"]:
        case "json_invalid":
            return ApiError(400, f"the body is not JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
        case "extra_forbidden":
            return ApiError(400, f"Unrecognized request argument supplied: {param}", param=param)
        case "missing":
            return ApiError(
                400, f"the field {param} is missing", param=param, code="missing_required_parameter"
            )
        case "value_error":
            field, _, why = str(first["ctx"]["error"]).partition("|")
            where = f"{param}.{field}" if param else field
            return ApiError(400, f"{where}: {why}", param=where, code="invalid_value")
    if not param:
        return ApiError(400, "the body is to be a JSON object")
    return ApiError(400, f"{param}: {first['msg']}", param=param, code="invalid_value")


def _far_off(error: Any) -> int:
    """How little one of several errors says. Of a value that may be of several types, those of the types that
    it does not have say least."""
    return 0 if error["type"] == "extra_forbidden" else 2 if error["type"].endswith("_type") else 1


def _place(loc: tuple[int | str, ...]) -> list[int | str]:
    """Without pydantic's words for the branches of a union."""
    known = {"function-after", "constrained-str", "str", "int", "bool"}
    return [p for p in loc if isinstance(p, int) or not (p in known or "[" in p or p == "TextPart")]
