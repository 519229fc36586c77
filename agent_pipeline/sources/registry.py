"""The list of this package's readers.

To add a reader, add a module and a line to `SOURCES`.
"""

from agent_pipeline.sources.agents import (
    claude_code,
    claude_stream,
    cline,
    codex,
    codex_exec,
    copilot_cli,
    gemini_cli,
    goose,
    omniagents,
    openai_agents,
    openai_traces,
    opencode,
    openhands,
    pi,
    qwen_code,
)
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.sources.benchmarks import (
    agentdojo,
    atif,
    inspect_ai,
    nemo_gym,
    omniagents_eval,
    swe_agent,
    swink,
    tau2,
    tau_bench,
    toolbench,
)
from agent_pipeline.sources.formats import bare_messages, pairs, plain
from agent_pipeline.sources.platforms import (
    api_logs,
    langfuse,
    langsmith,
    litellm,
    mlflow,
    opentelemetry,
)

Reader = type[TraceSource]

SOURCES: tuple[Reader, ...] = (
    omniagents.OmniagentsSource,
    openai_agents.OpenAIAgentsSource,
    openai_traces.OpenAITracesSource,
    opentelemetry.OpenInferenceSource,
    opentelemetry.OpenTelemetrySource,
    langfuse.LangfuseSource,
    langsmith.LangSmithSource,
    mlflow.MLflowSource,
    litellm.LiteLLMSource,
    claude_code.ClaudeCodeSource,
    codex.CodexSource,
    gemini_cli.GeminiCLISource,
    openhands.OpenHandsSource,
    pi.PiSource,
    qwen_code.QwenCodeSource,
    qwen_code.IFlowSource,
    claude_stream.ClaudeStreamSource,
    codex_exec.CodexExecSource,
    copilot_cli.CopilotCLISource,
    opencode.OpenCodeSource,
    cline.ClineSource,
    goose.GooseSource,
    swink.SwinkSource,
    omniagents_eval.OmniagentsEvalSource,
    tau_bench.TauBenchSource,
    tau2.Tau2Source,
    agentdojo.AgentDojoSource,
    atif.ATIFSource,
    inspect_ai.InspectSource,
    toolbench.ToolBenchSource,
    swe_agent.SWEAgentSource,
    nemo_gym.NemoGymSource,
    api_logs.ApiLogSource,
    # The plain forms come last, because records of other formats have messages too.
    plain.OpenAIChatSource,
    plain.ResponsesSource,
    plain.ShareGPTSource,
    pairs.PromptCompletionSource,
    bare_messages.BareMessagesSource,
)
"""All readers of this package. If two readers accept a path, the first one is used."""
