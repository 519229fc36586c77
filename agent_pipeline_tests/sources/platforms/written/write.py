"""Two runs of one session through an SDK, against a scripted model: `python write.py openinference FOLDER`; see README.md."""

import json
import sys
import threading
from base64 import b64decode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

OUT = Path(sys.argv[2])
SCHEMA = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Finds an order.", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": 7}'}}
ANSWERS = {
    "Where is order 7?": {"content": None, "tool_calls": [CALL]},
    "in Ulm": {"content": "Your order is in Ulm."},
    "Thanks": {"content": "You are welcome."},
}


class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        choice = {"index": 0, "message": {"role": "assistant", **ANSWERS[asked]}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        body = json.dumps(
            {"id": "x", "object": "chat.completion", "created": 1, "model": "m-1", "choices": [choice], "usage": usage}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}/v1"


def openai_answer(messages):
    import openai

    message = (
        openai.OpenAI(base_url=URL, api_key="x").chat.completions.create(model="m-1", messages=messages, tools=[TOOL]).choices[0].message
    )
    return {name: value for name, value in message.model_dump(exclude_none=True).items() if name in ("role", "content", "tool_calls")}


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


def hexed(node):
    """OTLP's JSON has ids in hex, protobuf's in base64."""
    if isinstance(node, dict):
        return {
            name: b64decode(value).hex() if name in ("traceId", "spanId", "parentSpanId") else hexed(value) for name, value in node.items()
        }
    return [hexed(each) for each in node] if isinstance(node, list) else node


def write(name, records):
    with (OUT / name).open("w") as file:
        file.writelines(json.dumps(record, default=str) + "\n" for record in records)


def spans(name, instrumentor, root, around):
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, memory = TracerProvider(resource=Resource({"service.name": "shop"})), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=(OUT / f"{name}_console.json").open("w"))))
    instrumentor.instrument(tracer_provider=provider)
    for run in runs(openai_answer):
        with provider.get_tracer("shop").start_as_current_span("support", attributes=root), around():
            run()
    write(f"{name}_otlp.jsonl", [hexed(MessageToDict(encode_spans([span]))) for span in memory.get_finished_spans()])


def openinference():
    from openinference.instrumentation import using_session
    from openinference.instrumentation.openai import OpenAIInstrumentor

    root = {"openinference.span.kind": "AGENT", "agent.name": "support", "session.id": "s1"}
    spans("openinference", OpenAIInstrumentor(), root, lambda: using_session("s1"))


def openllmetry():
    from contextlib import nullcontext

    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    root = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "support", "gen_ai.conversation.id": "s1"}
    spans("opentelemetry", OpenAIInstrumentor(), root, nullcontext)


def mlflow():
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{OUT.resolve()}/mlflow.db")
    mlflow.set_experiment("shop")
    mlflow.openai.autolog()
    for run in runs(openai_answer):

        @mlflow.trace(name="support")
        def support(run=run):
            mlflow.update_current_trace(metadata={"mlflow.trace.session": "s1"})
            run()

        support()
    mlflow.flush_trace_async_logging()
    ids = [trace.info.trace_id for trace in mlflow.search_traces(return_type="list")]
    mlflow.log_feedback(trace_id=ids[0], name="helpfulness", value=0.5)
    write("mlflow.jsonl", [mlflow.get_trace(each).to_dict() for each in ids])
    mlflow.search_traces().to_json(OUT / "mlflow_frame.jsonl", orient="records", lines=True)


def litellm():
    import time

    import litellm

    logged = []

    def answer(messages):
        told = {"model": "openai/m-1", "api_base": URL, "api_key": "x", "messages": messages, "tools": [TOOL]}
        message = litellm.completion(**told, litellm_session_id="s1").choices[0].message
        return {name: value for name, value in message.model_dump(exclude_none=True).items() if name in ("role", "content", "tool_calls")}

    litellm.success_callback = [lambda details, response, start, end: logged.append(details["standard_logging_object"])]
    for run in runs(answer):
        run()
        time.sleep(5)
    write("litellm.jsonl", logged)


globals()[sys.argv[1]]()
