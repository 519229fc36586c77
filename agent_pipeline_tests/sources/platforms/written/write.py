"""Two runs of one session through an SDK, against a scripted model: `python write.py openinference FOLDER`; see README.md."""

import json
import os
import sys
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

OUT = Path(sys.argv[2])
SCHEMA = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Finds an order.", "parameters": SCHEMA},
}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"order": 7}'},
}
ANSWERS = {
    "Where is order 7?": {"content": None, "tool_calls": [CALL]},
    "in Ulm": {"content": "Your order is in Ulm."},
    "Thanks": {"content": "You are welcome."},
}


class Answering(BaseHTTPRequestHandler):
    """Answers in JSON."""

    def reply(self, value):
        raw = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass


def served(handler):
    """The address of a server of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class Model(Answering):
    """OpenAI's chat completions, Anthropic's messages, Bedrock's `converse` and Gemini's `generateContent`; the answer is that to the last
    message."""

    def do_POST(self):
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        last = json.dumps((told.get("messages") or told.get("contents"))[-1])
        answer = next(each for asked, each in ANSWERS.items() if asked in last)
        choice = {
            "index": 0,
            "message": {"role": "assistant", **answer},
            "finish_reason": "tool_calls" if "tool_calls" in answer else "stop",
        }
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        body = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m-1",
            "choices": [choice],
            "usage": usage,
        }
        if "contents" in told:
            call = {"functionCall": {"name": "look_up", "args": {"order": 7}}}
            part = call if "tool_calls" in answer else {"text": answer["content"]}
            usage = {"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 12}
            content = {"role": "model", "parts": [part]}
            body = {
                "candidates": [{"content": content, "finishReason": "STOP"}],
                "usageMetadata": usage,
                "modelVersion": "m-1",
            }
        if self.path.endswith("/messages"):
            call = {"type": "tool_use", "id": "c1", "name": "look_up", "input": {"order": 7}}
            block = call if "tool_calls" in answer else {"type": "text", "text": answer["content"]}
            usage = {"input_tokens": 10, "output_tokens": 2}
            body = {
                "id": "x",
                "type": "message",
                "role": "assistant",
                "model": "m-1",
                "content": [block],
                "usage": usage,
            }
            body |= {
                "stop_reason": "tool_use" if block is call else "end_turn",
                "stop_sequence": None,
            }
        if self.path.endswith("/converse"):
            call = {"toolUse": {"toolUseId": "c1", "name": "look_up", "input": {"order": 7}}}
            content = [call if "tool_calls" in answer else {"text": answer["content"]}]
            body = {
                "output": {"message": {"role": "assistant", "content": content}},
                "metrics": {"latencyMs": 1},
            }
            body |= {
                "stopReason": "end_turn",
                "usage": {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12},
            }
        self.reply(body)


URL = f"{served(Model)}/v1"
ASKED = ("Where is order 7?", "Thanks")
GENAI = {
    "gen_ai.operation.name": "invoke_agent",
    "gen_ai.agent.name": "support",
    "gen_ai.conversation.id": "s1",
}
OPENINFERENCE = {"openinference.span.kind": "AGENT", "agent.name": "support", "session.id": "s1"}


def look_up(order: int) -> str:
    """Finds an order."""
    return "in Ulm"


def openai_answer(messages):
    import openai

    message = (
        openai.OpenAI(base_url=URL, api_key="x")
        .chat.completions.create(model="m-1", messages=messages, tools=[TOOL])
        .choices[0]
        .message
    )
    return {
        name: value
        for name, value in message.model_dump(exclude_none=True).items()
        if name in ("role", "content", "tool_calls")
    }


def runs(answer):
    """Two runs; each is a function of no argument."""
    told = [{"role": "system", "content": "You are helpful."}]

    def first():
        told.append({"role": "user", "content": "Where is order 7?"})
        told.append(answer(list(told)))
        told.append({"role": "tool", "tool_call_id": "c1", "content": "in Ulm"})
        told.append(answer(list(told)))

    def second():
        told.append({"role": "user", "content": "Thanks"})
        told.append(answer(list(told)))

    return first, second


def write(name, records):
    with (OUT / name).open("w") as file:
        file.writelines(json.dumps(record, default=str) + "\n" for record in records)


def messages(sdk, told):
    """The messages as an SDK keeps them: a line of a file of all."""
    path = OUT / "messages.jsonl"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    known = {line["session_id"]: line for line in lines} | {
        sdk: {"session_id": sdk, "messages": told}
    }
    write(path.name, [known[name] for name in sorted(known)])


def provider_of(name, left_out=()):
    """A provider of tracers whose spans become lines of a file, but for those of some kinds."""
    from opentelemetry.exporter.otlp.json.file import FileSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    class Exporter(FileSpanExporter):
        def export(self, spans):
            return super().export(
                [
                    each
                    for each in spans
                    if each.attributes.get("openinference.span.kind") not in left_out
                ]
            )

    provider = TracerProvider(resource=Resource({"service.name": "shop"}))
    (OUT / name).unlink(missing_ok=True)
    provider.add_span_processor(SimpleSpanProcessor(Exporter(str(OUT / name))))
    return provider


def traced(provider, root, played, around=nullcontext):
    """Each run in a span of its own."""
    for run in played:
        with (
            provider.get_tracer("shop").start_as_current_span("support", attributes=root),
            around(),
        ):
            run()


def asked(ask):
    """The runs of a framework that plays an agent."""
    return [lambda words=words: ask(words) for words in ASKED]


def with_console(name, instrumentor, root, around=nullcontext):
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    provider = provider_of(f"{name}_otlp.jsonl")
    provider.add_span_processor(
        SimpleSpanProcessor(ConsoleSpanExporter(out=(OUT / f"{name}_console.json").open("w")))
    )
    instrumentor.instrument(tracer_provider=provider)
    traced(provider, root, runs(openai_answer), around)


def openinference():
    from openinference.instrumentation import using_session
    from openinference.instrumentation.openai import OpenAIInstrumentor

    with_console("openinference", OpenAIInstrumentor(), OPENINFERENCE, lambda: using_session("s1"))


def openllmetry():
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    with_console("opentelemetry", OpenAIInstrumentor(), GENAI)


def genai(name="genai_messages", captured="true", conventions=""):
    """Spans, and log records with a message each, in one file."""
    os.environ |= {
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": captured,
        "OTEL_SEMCONV_STABILITY_OPT_IN": conventions,
    }
    from opentelemetry.exporter.otlp.json.file._log_exporter import FileLogExporter
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import ConsoleLogRecordExporter, SimpleLogRecordProcessor

    provider = provider_of(f"{name}.jsonl")
    logs = LoggerProvider(resource=provider.resource)
    logs.add_log_record_processor(
        SimpleLogRecordProcessor(FileLogExporter(str(OUT / f"{name}.jsonl")))
    )
    logs.add_log_record_processor(
        SimpleLogRecordProcessor(
            ConsoleLogRecordExporter(out=(OUT / f"{name}_console.json").open("w"))
        )
    )
    OpenAIInstrumentor().instrument(tracer_provider=provider, logger_provider=logs)
    traced(provider, GENAI, runs(openai_answer))


def google_adk():
    """The agent's own spans and log records, which name the session."""
    import asyncio

    address = {"GOOGLE_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": URL.removesuffix("/v1")}
    os.environ |= address | {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_AND_EVENT"}
    from google.adk.agents import Agent
    from google.adk.runners import InMemoryRunner
    from google.genai import types
    from opentelemetry import _logs, trace
    from opentelemetry.exporter.otlp.json.file._log_exporter import FileLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor

    provider = provider_of("google_adk.jsonl")
    logs = LoggerProvider(resource=provider.resource)
    logs.add_log_record_processor(
        SimpleLogRecordProcessor(FileLogExporter(str(OUT / "google_adk.jsonl")))
    )
    trace.set_tracer_provider(provider)
    _logs.set_logger_provider(logs)
    agent = Agent(
        name="support", model="gemini-m-1", instruction="You are helpful.", tools=[look_up]
    )
    runner = InMemoryRunner(agent, app_name="shop")

    async def play():
        await runner.session_service.create_session(app_name="shop", user_id="u", session_id="s1")
        for words in ASKED:
            told = types.Content(role="user", parts=[types.Part(text=words)])
            async for _ in runner.run_async(user_id="u", session_id="s1", new_message=told):
                pass

    asyncio.run(play())


def ag2():
    import asyncio

    from ag2 import Agent
    from ag2.config import OpenAIConfig
    from ag2.middleware import TelemetryMiddleware

    provider, last = provider_of("ag2.jsonl"), []
    telemetry = TelemetryMiddleware(tracer_provider=provider, agent_name="support")
    agent = Agent(
        "support",
        "You are helpful.",
        config=OpenAIConfig("m-1", api_key="x", base_url=URL),
        tools=[look_up],
        middleware=[telemetry],
    )

    def ask(words):
        last[:] = [asyncio.run((last[0] if last else agent).ask(words))]

    traced(provider, GENAI, asked(ask))


def genai_latest():
    genai("genai_calls", "event_only", "gen_ai_latest_experimental")


def langgraph():
    from langchain.agents import create_agent
    from langchain_core.messages import messages_to_dict
    from langchain_openai import ChatOpenAI
    from openinference.instrumentation import using_session
    from openinference.instrumentation.langchain import LangChainInstrumentor

    provider, told = provider_of("langgraph.jsonl", ("CHAIN",)), []
    LangChainInstrumentor().instrument(tracer_provider=provider)
    agent = create_agent(
        ChatOpenAI(model="m-1", base_url=URL, api_key="x"),
        [look_up],
        system_prompt="You are helpful.",
    )

    def ask(words):
        told[:] = agent.invoke({"messages": [*told, {"role": "user", "content": words}]})[
            "messages"
        ]

    traced(provider, OPENINFERENCE, asked(ask), lambda: using_session("s1"))
    messages("langchain", messages_to_dict(told))


def pydantic_ai():
    from pydantic_ai import Agent, ModelMessagesTypeAdapter
    from pydantic_ai.models.instrumented import InstrumentationSettings
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider, told = provider_of("pydantic_ai.jsonl"), []
    model = OpenAIChatModel("m-1", provider=OpenAIProvider(base_url=URL, api_key="x"))
    agent = Agent(model, system_prompt="You are helpful.", tools=[look_up], name="support")
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))

    def ask(words):
        told[:] = agent.run_sync(words, message_history=told, conversation_id="s1").all_messages()

    [run() for run in asked(ask)]
    messages("pydantic_ai", json.loads(ModelMessagesTypeAdapter.dump_json(told)))


def google_genai():
    from google import genai as client_of
    from google.genai import types
    from openinference.instrumentation import using_session
    from openinference.instrumentation.google_genai import GoogleGenAIInstrumentor

    provider = provider_of("google_genai.jsonl")
    GoogleGenAIInstrumentor().instrument(tracer_provider=provider)
    client = client_of.Client(
        api_key="x", http_options=types.HttpOptions(base_url=URL.removesuffix("/v1"))
    )
    config = types.GenerateContentConfig(system_instruction="You are helpful.", tools=[look_up])
    chat = client.chats.create(model="m-1", config=config)
    traced(provider, OPENINFERENCE, asked(chat.send_message), lambda: using_session("s1"))
    messages("gemini", [each.model_dump(mode="json") for each in chat.get_history()])


def anthropic():
    import anthropic as client_of
    from openinference.instrumentation import using_session
    from openinference.instrumentation.anthropic import AnthropicInstrumentor

    provider, told = provider_of("anthropic.jsonl"), []
    AnthropicInstrumentor().instrument(tracer_provider=provider)
    client = client_of.Anthropic(base_url=URL.removesuffix("/v1"), api_key="x")
    tool = {"name": "look_up", "description": "Finds an order.", "input_schema": SCHEMA}

    def ask(content):
        told.append({"role": "user", "content": content})
        answer = client.messages.create(
            model="m-1", max_tokens=99, system="You are helpful.", messages=told, tools=[tool]
        )
        told.append(
            {"role": "assistant", "content": [block.model_dump() for block in answer.content]}
        )
        if answer.stop_reason == "tool_use":
            ask(
                [
                    {
                        "type": "tool_result",
                        "tool_use_id": answer.content[0].id,
                        "content": look_up(7),
                    }
                ]
            )

    traced(provider, OPENINFERENCE, asked(ask), lambda: using_session("s1"))
    messages("anthropic", told)


def autogen():
    import asyncio

    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    about = dict.fromkeys(("vision", "json_output", "structured_output"), False) | {
        "function_calling": True,
        "family": "unknown",
    }
    model = OpenAIChatCompletionClient(model="m-1", base_url=URL, api_key="x", model_info=about)
    agent = AssistantAgent(
        "support",
        model,
        tools=[look_up],
        system_message="You are helpful.",
        reflect_on_tool_use=True,
    )

    async def play():
        for words in ASKED:
            await agent.run(task=words)
        return await agent.save_state()

    messages("autogen", asyncio.run(play())["llm_context"]["messages"])


def bedrock():
    from botocore.session import Session

    about = {"region_name": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "x"}
    client, told = (
        Session().create_client("bedrock-runtime", endpoint_url=URL.removesuffix("/v1"), **about),
        [],
    )
    tool = {
        "toolSpec": {
            "name": "look_up",
            "description": "Finds an order.",
            "inputSchema": {"json": SCHEMA},
        }
    }

    def ask(content):
        told.append({"role": "user", "content": content})
        system = [{"text": "You are helpful."}]
        answer = client.converse(
            modelId="m-1", system=system, messages=told, toolConfig={"tools": [tool]}
        )["output"]["message"]
        told.append(answer)
        if "toolUse" in answer["content"][0]:
            ask(
                [
                    {
                        "toolResult": {
                            "toolUseId": answer["content"][0]["toolUse"]["toolUseId"],
                            "content": [{"text": look_up(7)}],
                        }
                    }
                ]
            )

    for run in asked(lambda words: ask([{"text": words}])):
        run()
    messages("bedrock", told)


def llama_index():
    import asyncio

    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.memory import ChatMemoryBuffer
    from llama_index.llms.openai_like import OpenAILike
    from openinference.instrumentation import using_session
    from openinference.instrumentation.llama_index import LlamaIndexInstrumentor

    provider = provider_of("llama_index.jsonl", ("CHAIN",))
    LlamaIndexInstrumentor().instrument(tracer_provider=provider)
    model = OpenAILike(
        model="m-1", api_base=URL, api_key="x", is_chat_model=True, is_function_calling_model=True
    )
    agent = FunctionAgent(
        tools=[look_up], llm=model, system_prompt="You are helpful.", streaming=False
    )
    memory = ChatMemoryBuffer.from_defaults(token_limit=9999)

    async def said(words):
        return await agent.run(words, memory=memory)

    traced(
        provider,
        OPENINFERENCE,
        asked(lambda words: asyncio.run(said(words))),
        lambda: using_session("s1"),
    )
    messages("llama_index", [each.model_dump(mode="json") for each in memory.get_all()])


def crewai():
    """CrewAI's spans say which agent and task, and those of OpenAI's SDK what was said."""
    from openinference.instrumentation import using_session
    from openinference.instrumentation.crewai import CrewAIInstrumentor
    from openinference.instrumentation.openai import OpenAIInstrumentor

    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}
    provider = provider_of("crewai.jsonl", ("CHAIN",))
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    CrewAIInstrumentor().instrument(tracer_provider=provider)
    from crewai import LLM, Agent, Crew, Task
    from crewai.tools import tool

    model = LLM(model="openai/m-1", base_url=URL, api_key="x")
    agent = Agent(
        role="support",
        goal="help",
        backstory="You are helpful.",
        llm=model,
        tools=[tool("look_up")(look_up)],
    )

    def ask(words):
        Crew(
            agents=[agent], tasks=[Task(description=words, expected_output="words", agent=agent)]
        ).kickoff()

    traced(provider, OPENINFERENCE, asked(ask), lambda: using_session("s1"))


AI_SDK = """
const { appendFileSync, writeFileSync } = require("node:fs");
const { NodeTracerProvider, SimpleSpanProcessor } = require("@opentelemetry/sdk-trace-node");
const { JsonTraceSerializer } = require("@opentelemetry/otlp-transformer");
const { resourceFromAttributes } = require("@opentelemetry/resources");
const { generateText, jsonSchema, tool, stepCountIs } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const [url, out, schema, asked] = process.argv.slice(1);
const write = (spans) => appendFileSync(out + "/ai_sdk.jsonl", Buffer.from(JsonTraceSerializer.serializeRequest(spans)) + "\\n");
const exporter = { export: (spans, done) => { write(spans); done({ code: 0 }); }, shutdown: async () => {} };
const resource = resourceFromAttributes({ "service.name": "shop" });
new NodeTracerProvider({ resource, spanProcessors: [new SimpleSpanProcessor(exporter)] }).register();
const model = createOpenAICompatible({ name: "scripted", baseURL: url, apiKey: "x" })("m-1");
const look_up = tool({ description: "Finds an order.", inputSchema: jsonSchema(JSON.parse(schema)), execute: async () => "in Ulm" });
const experimental_telemetry = { isEnabled: true, functionId: "support", metadata: { sessionId: "s1" } };
(async () => {
  const messages = [];
  for (const content of JSON.parse(asked)) {
    messages.push({ role: "user", content });
    const told = { model, system: "You are helpful.", messages, tools: { look_up }, stopWhen: stepCountIs(5), experimental_telemetry };
    messages.push(...(await generateText(told)).response.messages);
  }
  console.log(JSON.stringify(messages));
})();
"""


def ai_sdk():
    """Run it in the folder of `npm install`'s `node_modules`."""
    import subprocess

    (OUT / "ai_sdk.jsonl").unlink(missing_ok=True)
    run = ["node", "-e", AI_SDK, URL, str(OUT), json.dumps(SCHEMA), json.dumps(ASKED)]
    messages("ai_sdk", json.loads(subprocess.run(run, check=True, capture_output=True).stdout))


def langfuse():
    """Public traces of frameworks, from the folder that the third argument names, without the steps between and repeated attributes."""
    repeated = (
        "input.",
        "output.",
        "llm.invocation_parameters",
        "gcp.",
        "llm.input_messages.0.message.contents",
    )
    fields = (
        "id",
        "type",
        "name",
        "parentObservationId",
        "startTime",
        "endTime",
        "model",
        "input",
        "output",
        "usageDetails",
        "level",
    )
    traces = []
    for framework in (
        "agno",
        "google-adk",
        "langgraph-js",
        "langgraph-python",
        "llamaindex",
        "microsoft",
        "openai-agents",
        "vercel",
    ):
        (path,) = Path(sys.argv[3]).glob(f"{framework}*.trace.json")
        whole = json.loads(path.read_text())
        steps = [
            each
            for each in whole["observations"]
            if each["type"] in ("GENERATION", "TOOL", "AGENT") or not each["parentObservationId"]
        ]
        for at, step in enumerate(steps):
            metadata = (
                step["metadata"]
                if isinstance(step["metadata"], dict)
                else json.loads(step["metadata"])
            )
            attributes = metadata.get("attributes") or {}
            attributes = json.loads(attributes) if isinstance(attributes, str) else attributes
            kept = {
                name: value for name, value in attributes.items() if not name.startswith(repeated)
            }
            steps[at] = {name: step.get(name) for name in fields} | {
                "metadata": {"attributes": kept} if kept else {}
            }
        about = {
            name: whole["trace"].get(name)
            for name in ("id", "projectId", "name", "timestamp", "sessionId", "public")
        }
        scores = [
            {name: each.get(name) for name in ("id", "name", "value", "dataType", "stringValue")}
            for each in whole["trace"]["scores"]
        ]
        traces.append({"trace": about | {"scores": scores}, "observations": steps})
    write("langfuse.jsonl", traces)


def collector(answers):
    """A server that keeps what is sent to it, as (path, body), and answers by what stands for a path; and its address."""
    import gzip

    posted = []

    class Collector(Answering):
        def do_POST(self):
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append(
                (
                    self.path,
                    gzip.decompress(raw) if self.headers["Content-Encoding"] == "gzip" else raw,
                )
            )
            self.do_GET()

        do_PATCH = do_POST  # noqa: N815

        def do_GET(self):
            self.reply(answers.get(self.path.partition("?")[0], {}))

    return posted, served(Collector)


def langfuse_api(has_traces=False):
    """Answers of the API: what the SDK recorded of itself, under the names of the API, read back and written by the SDK's own client."""
    from datetime import UTC, datetime

    from langfuse import Langfuse, propagate_attributes
    from langfuse.openai import openai
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    pages = {}
    posted, address = collector(pages)
    client = Langfuse(public_key="x", secret_key="x", base_url=address)
    model = openai.OpenAI(base_url=URL, api_key="x")

    def answer(messages):
        message = (
            model.chat.completions.create(model="m-1", messages=messages, tools=[TOOL])
            .choices[0]
            .message
        )
        return {
            name: value
            for name, value in message.model_dump(exclude_none=True).items()
            if name in ("role", "content", "tool_calls")
        }

    for run in runs(answer):
        about = {"as_type": "agent", "name": "support", "metadata": {"task_id": "7"}}
        with (
            client.start_as_current_observation(**about) as root,
            propagate_attributes(session_id="s1", trace_name="support"),
        ):
            run()
    client.flush()
    requests = [
        ExportTraceServiceRequest.FromString(raw)
        for path, raw in posted
        if path.endswith("/traces")
    ]
    spans = [
        span
        for each in requests
        for of in each.resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]
    observations = []
    for span in spans:
        said = {
            each.key.removeprefix("langfuse."): each.value.string_value for each in span.attributes
        }
        counts = json.loads(said.get("observation.usage_details", "{}"))
        observation = {
            "id": span.span_id.hex(),
            "traceId": span.trace_id.hex(),
            "projectId": "shop",
            "parentObservationId": span.parent_span_id.hex() or None,
            "isRootObservation": "internal.is_app_root" in said,
            "type": said["observation.type"].upper(),
            "name": span.name,
            "startTime": datetime.fromtimestamp(span.start_time_unix_nano / 1e9, UTC).isoformat(),
            "endTime": datetime.fromtimestamp(span.end_time_unix_nano / 1e9, UTC).isoformat(),
            "level": "DEFAULT",
            "sessionId": said["session.id"],
            "traceName": said["trace.name"],
            "input": said.get("observation.input"),
            "output": said.get("observation.output"),
            "metadata": {"task_id": said["observation.metadata.task_id"]}
            if "observation.metadata.task_id" in said
            else {},
            "model": said.get("observation.model.name"),
        }
        if counts:
            observation["usageDetails"] = {
                name: counts[of]
                for name, of in (
                    ("input", "prompt_tokens"),
                    ("output", "completion_tokens"),
                    ("total", "total_tokens"),
                )
            }
            observation |= {"costDetails": {"total": 0.25}, "totalCost": 0.25}
        observations.append(observation)
    now = datetime.now(UTC).isoformat()
    about = {
        "source": "API",
        "timestamp": now,
        "environment": "default",
        "createdAt": now,
        "updatedAt": now,
    }
    if has_traces:  # the API until 2026
        for at, trace in enumerate(dict.fromkeys(each["traceId"] for each in observations)):
            own = [each for each in observations if each["traceId"] == trace]
            for each in own:
                each |= {"environment": "default", "usageDetails": {}, "costDetails": {}} | each
                each |= {name: json.loads(each[name] or "null") for name in ("input", "output")}
                each["usage"] = {"input": 0, "output": 0, "total": 0, "unit": "TOKENS"} | each[
                    "usageDetails"
                ]
                del each["sessionId"], each["traceName"], each["isRootObservation"]
            told = {
                "id": trace,
                "timestamp": own[0]["startTime"],
                "name": "support",
                "sessionId": "s1",
                "projectId": "shop",
            }
            told |= {
                "metadata": {"task_id": 7},
                "public": False,
                "environment": "default",
                "observations": own,
                "scores": [],
            }
            told |= {"htmlPath": "/", "latency": 1.0, "totalCost": 0.25, "tags": []}
            if at:
                of = about | {"traceId": trace}
                told["scores"] += [
                    of | {"id": "x", "name": "helpfulness", "dataType": "NUMERIC", "value": 0.5}
                ]
                told["scores"] += [
                    of
                    | {
                        "id": "y",
                        "name": "grade",
                        "dataType": "CATEGORICAL",
                        "value": 0,
                        "stringValue": "pass",
                    }
                ]
            pages[f"/api/public/traces/{trace}"] = told
        write(
            "langfuse_traces.jsonl",
            [json.loads(client.api.trace.get(path.rpartition("/")[2]).json()) for path in pages],
        )
        return
    about["projectId"] = "shop"
    scores = [
        {
            "name": "helpfulness",
            "dataType": "NUMERIC",
            "value": 0.5,
            "subject": {"kind": "session", "id": "s1"},
        },
        {
            "name": "grade",
            "dataType": "CATEGORICAL",
            "value": "pass",
            "subject": {"kind": "trace", "id": root.trace_id},
        },
        {"name": "polite", "dataType": "BOOLEAN", "value": True}
        | {"subject": {"kind": "observation", "id": root.id, "traceId": root.trace_id}},
        {
            "name": "output",
            "dataType": "CORRECTION",
            "value": "Gladly.",
            "subject": {"kind": "trace", "id": root.trace_id},
        },
    ]
    pages["/api/public/v2/observations"] = {"data": observations, "meta": {}}
    pages["/api/public/v3/scores"] = {
        "data": [about | each | {"id": each["name"]} for each in scores],
        "meta": {"limit": 50},
    }
    read = [
        client.api.observations.get_many(fields="core,basic,io,metadata,model,usage,trace_context")
    ]
    read += [client.api.scores.get_many(fields="subject")]
    write("langfuse_api.jsonl", [json.loads(page.json()) for page in read])


def langfuse_traces():
    langfuse_api(has_traces=True)


def langsmith(name="langsmith.jsonl", played=None):
    """Runs as the SDK's client reads them: the server here gives back what the SDK posted, with counts and costs as services add them."""
    answers = {}
    sent, address = collector(answers)
    os.environ |= {
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_ENDPOINT": address,
        "LANGSMITH_API_KEY": "x",
    }
    from langsmith import Client, traceable, tracing_context
    from langsmith.wrappers import wrap_openai
    from openai import OpenAI

    client = Client(api_url=address, api_key="x", auto_batch_tracing=False)
    model = wrap_openai(OpenAI(base_url=URL, api_key="x"), tracing_extra={"client": client})

    def answer(messages):
        message = (
            model.chat.completions.create(model="m-1", messages=messages, tools=[TOOL])
            .choices[0]
            .message
        )
        return {
            name: value
            for name, value in message.model_dump(exclude_none=True).items()
            if name in ("role", "content", "tool_calls")
        }

    with tracing_context(enabled=True, client=client, project_name="shop"):
        for run in played or runs(answer):
            traceable(
                run, name="support", client=client, metadata={"session_id": "s1", "task_id": "7"}
            )()
    client.flush()
    found = {}
    for each in (json.loads(raw) for path, raw in sent if path.startswith("/runs")):
        found.setdefault(each["id"], {}).update(
            {key: value for key, value in each.items() if value is not None}
        )
    project, kept = "11111111-2222-3333-4444-555555555555", []
    for run in found.values():
        if run["run_type"] in ("llm", "tool") or "parent_run_id" not in run:
            run["extra"].pop("runtime")
            told = run["extra"]["metadata"]
            run["extra"]["metadata"] = {
                key: told[key] for key in told if not key.startswith(("LANGSMITH", "revision"))
            }
            counts = (
                {
                    "prompt_tokens": 10,
                    "completion_tokens": 2,
                    "total_tokens": 12,
                    "total_cost": 0.25,
                }
                if run["run_type"] == "llm"
                else {}
            )
            said = {
                key: value for key, value in run.items() if key not in ("serialized", "attachments")
            }
            kept.append(
                said | counts | {"session_id": project, "status": "success", "app_path": "/"}
            )
    answers |= {
        "/runs/query": {"runs": kept, "cursors": {}},
        "/info": {},
        "/sessions": [{"id": project, "name": "shop"}],
    }
    write(
        name,
        [
            json.loads(run.model_dump_json(exclude_none=True))
            for run in client.list_runs(project_id=project)
        ],
    )


def langsmith_langgraph():
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    agent, told = (
        create_agent(
            ChatOpenAI(model="m-1", base_url=URL, api_key="x"),
            [look_up],
            system_prompt="You are helpful.",
        ),
        [],
    )

    def ask(words):
        told[:] = agent.invoke({"messages": [*told, {"role": "user", "content": words}]})[
            "messages"
        ]

    langsmith("langsmith_langgraph.jsonl", asked(ask))


def harbor():
    """Trials whose trajectories Harbor makes of what coding agents wrote: the third argument is the folder of `play.py`'s files."""
    import shutil
    import tempfile
    from datetime import UTC, datetime

    from harbor.agents.installed.claude_code import ClaudeCode
    from harbor.agents.installed.codex import Codex
    from harbor.agents.installed.gemini_cli import GeminiCli
    from harbor.models.agent.context import AgentContext
    from harbor.models.task.id import LocalTaskId
    from harbor.models.trial.config import TaskConfig, TrialConfig
    from harbor.models.trial.result import AgentInfo, TrialResult
    from harbor.models.verifier.result import VerifierResult

    played = (
        (ClaudeCode, "sessions/projects/-shop"),
        (Codex, "sessions/2026/11/23"),
        (GeminiCli, "gemini-cli.trajectory.jsonl"),
    )
    for agent, place in played:
        name = agent.name().replace("-", "_")
        logs, trial = Path(tempfile.mkdtemp()), OUT / "harbor" / f"order__{name}"
        (logs / place).parent.mkdir(parents=True, exist_ok=True)
        (logs / place).mkdir() if "." not in place else None
        shutil.copy(Path(sys.argv[3], f"{name}.jsonl"), logs / place)
        agent(logs_dir=logs, model_name="openai/m-1").populate_context_post_run(AgentContext())
        (trial / "agent").mkdir(parents=True, exist_ok=True)
        (trial / "agent" / "trajectory.json").write_text(
            json.dumps(json.loads((logs / "trajectory.json").read_text())) + "\n"
        )
        task = {
            "task_name": "order",
            "trial_name": trial.name,
            "task_id": LocalTaskId(path="order"),
            "task_checksum": "x",
        }
        about = {
            "config": TrialConfig(task=TaskConfig(path="order")),
            "agent_info": AgentInfo(name=agent.name(), version="1"),
        }
        result = TrialResult(
            **task,
            **about,
            source="shop",
            trial_uri="file:///home/me",
            started_at=datetime.now(UTC),
        )
        result.verifier_result = VerifierResult(
            rewards={"reward": float(name != "codex"), "speed": 0.5}
        )
        said = json.loads(result.model_dump_json())
        (trial / "result.json").write_text(
            json.dumps({key: said[key] for key in said if key != "config"}) + "\n"
        )


def tau2():
    """One simulation of the mock domain, whose user has tools: the third argument is the folder `data` of tau2-bench."""

    def calls(number, name, **arguments):
        call = {
            "id": f"c{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        return {"content": None, "tool_calls": [call]}

    ANSWERS.clear()
    ANSWERS["Hi!"] = calls(1, "check_notifications")
    ANSWERS["has been assigned"] = {"content": "I finished task_1: mark it completed."}
    ANSWERS["mark it completed"] = calls(
        2, "update_task_status", task_id="task_1", status="completed"
    )
    ANSWERS["A test task"] = {"content": "It is marked."}
    ANSWERS["It is marked"] = calls(3, "dismiss_notification", notification_id="notif_1")
    ANSWERS["dismissed"] = {"content": "###STOP###"}
    about = {"TAU2_DATA_DIR": sys.argv[3], "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    os.environ |= about | {"OPENAI_API_KEY": "x", "OPENAI_API_BASE": URL}
    import shutil

    from tau2 import cli
    from tau2.data_model.simulation import Results

    made = Path(sys.argv[3], "simulations", "written")
    shutil.rmtree(made, ignore_errors=True)
    asked = "run --domain mock --agent-llm openai/m-1 --user-llm openai/m-1 --agent-llm-args {} --user-llm-args {}"
    sys.argv = [
        "tau2",
        *asked.split(),
        "--task-ids",
        "update_task_with_user_tools",
        "--num-trials",
        "1",
        "--save-to",
        "written",
    ]
    cli.main()
    results = Results.load(made / "results.json")
    (
        results.tasks,
        results.info.environment_info.policy,
        results.info.user_info.global_simulation_guidelines,
    ) = [], "Mock", None
    for simulation in results.simulations:
        simulation.policy = "Mock"
        for message in simulation.messages:
            if message.role != "tool":
                message.raw_data = None
    (OUT / "tau2").mkdir(exist_ok=True)
    results.save(OUT / "tau2", format="dir")
    results.save(OUT / "tau2.json")


def into_mlflow(address, session="s1", number=2):
    import mlflow

    mlflow.set_tracking_uri(address)
    mlflow.set_experiment("shop")
    mlflow.openai.autolog()
    for run in runs(openai_answer)[: int(number)]:

        @mlflow.trace(name="support")
        def support(run=run):
            mlflow.update_current_trace(metadata={"mlflow.trace.session": session})
            run()

        support()
    mlflow.flush_trace_async_logging()


def mlflow_server():
    """The third argument is a running server's address, the others the session's id and its number of runs; the last is assessed."""
    import mlflow

    into_mlflow(*sys.argv[3:])
    last = mlflow.get_last_active_trace_id()
    mlflow.log_feedback(trace_id=last, name="helpfulness", value=0.5)
    mlflow.log_feedback(trace_id=last, name="correct", value=True)
    mlflow.log_expectation(trace_id=last, name="answer", value="You are welcome.")


def mlflow():
    import mlflow

    into_mlflow(f"sqlite:///{OUT.resolve()}/mlflow.db")
    ids = [trace.info.trace_id for trace in mlflow.search_traces(return_type="list")]
    mlflow.log_feedback(trace_id=ids[0], name="helpfulness", value=0.5)
    write("mlflow.jsonl", [mlflow.get_trace(each).to_dict() for each in ids])
    mlflow.search_traces().to_json(OUT / "mlflow_frame.jsonl", orient="records", lines=True)
    dump(
        "mlflow.db",
        OUT / "mlflow.db",
        (
            "experiments",
            "trace_info",
            "trace_tags",
            "trace_request_metadata",
            "assessments",
            "spans",
        ),
    )


def dump(name, database, tables):
    """Some tables of a database as SQL."""
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        made = [
            line
            for (line,) in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'")
            if line.split()[2].strip('"') in tables
        ]
        rows = [
            line
            for line in connection.iterdump()
            if line.startswith(tuple(f'INSERT INTO "{table}"' for table in tables))
        ]
    text = "".join(f"{line};\n" for line in made) + "".join(f"{line}\n" for line in rows)
    (OUT / f"{name}.sql").write_text(text.replace(str(OUT.resolve()), "/home/me"))


def into_phoenix(address, session="s1", number=2):
    """Runs in a running server; people and code annotate the last run."""
    import time

    from openinference.instrumentation import using_session
    from openinference.instrumentation.openai import OpenAIInstrumentor
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from phoenix.client import Client

    provider = TracerProvider(resource=Resource({"openinference.project.name": "shop"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{address}/v1/traces")))
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    roots, about = [], OPENINFERENCE | {"session.id": session}
    for run in runs(openai_answer)[: int(number)]:
        with (
            provider.get_tracer("shop").start_as_current_span("support", attributes=about) as span,
            using_session(session),
        ):
            run()
        roots.append(span.get_span_context())
    time.sleep(5)
    client, trace, root = (
        Client(base_url=address),
        f"{roots[-1].trace_id:032x}",
        f"{roots[-1].span_id:016x}",
    )
    client.spans.add_span_annotation(
        span_id=root, annotation_name="helpfulness", annotator_kind="CODE", score=0.5, sync=True
    )
    client.spans.add_span_annotation(
        span_id=root, annotation_name="quality", annotator_kind="HUMAN", label="good", sync=True
    )
    client.traces.add_trace_annotation(
        trace_id=trace, annotation_name="answer", annotator_kind="HUMAN", label="correct", sync=True
    )
    client.sessions.add_session_annotation(
        session_id=session,
        annotation_name="all",
        annotator_kind="HUMAN",
        label="acceptable",
        sync=True,
    )


def phoenix_server():
    """The third argument is a running server's address, the others the session's id and its number of runs."""
    into_phoenix(*sys.argv[3:])


def phoenix():
    """The third argument is a running server's address, the fourth its database."""
    into_phoenix(sys.argv[3])
    annotations = ("span_annotations", "trace_annotations", "project_session_annotations")
    dump(
        "phoenix.db", sys.argv[4], ("projects", "project_sessions", "traces", "spans", *annotations)
    )


def served():
    """What a running server answers to a source that reads a session, and then another that came; the third argument is `phoenix` or
    `mlflow`, the others the server's address and the Python of the environment that has its SDK. Our own Python runs this."""
    import subprocess
    import tempfile

    from agent_pipeline.sources import open_source, parse_location
    from agent_pipeline.sources.formats.services import Service

    repeated = {
        "input.value",
        "output.value",
        "llm.invocation_parameters",
        "request_preview",
        "response_preview",
        "artifact_location",
    }
    repeated |= {
        f"mlflow.{name}"
        for name in ("traceInputs", "traceOutputs", "artifactLocation", "source.name", "user")
    } | {"tools"}
    platform, address, python = sys.argv[3:6]
    looks, asked, cache = [], Service.asked, Path(tempfile.mkdtemp())

    def short(value):
        if isinstance(value, dict):
            return {name: short(each) for name, each in value.items() if name not in repeated}
        if isinstance(value, list):
            return [
                short(each)
                for each in value
                if not (isinstance(each, dict) and each.get("key") in repeated)
            ]
        return value

    def recorded(self, path, about, method="GET"):
        value = asked(self, path, about, method)
        looks[-1].append([method, path, about, short(value)])
        return value

    Service.asked = recorded
    for session, number in (("s1", "2"), ("s2", "1")):
        subprocess.run(
            [python, __file__, f"{platform}_server", str(OUT), address, session, number], check=True
        )
        looks.append([])
        source = open_source(parse_location(f"{platform}+{address}"), cache=cache)
        print([stored.session_id for key in source.partitions() for stored in source.stored(key)])
    lines = (json.dumps(look, separators=(",", ":")) + "\n" for look in looks)
    (OUT / f"{platform}_server.jsonl").write_text("".join(lines))


def litellm():
    import time

    import litellm

    logged = []

    def answer(messages):
        told = {
            "model": "openai/m-1",
            "api_base": URL,
            "api_key": "x",
            "messages": messages,
            "tools": [TOOL],
        }
        message = litellm.completion(**told, litellm_session_id="s1").choices[0].message
        return {
            name: value
            for name, value in message.model_dump(exclude_none=True).items()
            if name in ("role", "content", "tool_calls")
        }

    litellm.success_callback = [
        lambda details, response, start, end: logged.append(details["standard_logging_object"])
    ]
    for run in runs(answer):
        run()
        time.sleep(5)
    write("litellm.jsonl", logged)


globals()[sys.argv[1]]()
