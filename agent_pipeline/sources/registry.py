"""The readers of this package. A new one is a module and a line here."""

from agent_pipeline.sources.agents.claude_code import ClaudeCodeSource
from agent_pipeline.sources.agents.codex import CodexSource
from agent_pipeline.sources.agents.gemini_cli import GeminiCLISource
from agent_pipeline.sources.agents.omniagents import OmniagentsSource
from agent_pipeline.sources.agents.openai_agents import OpenAIAgentsSource
from agent_pipeline.sources.agents.openai_traces import OpenAITracesSource
from agent_pipeline.sources.agents.openhands import OpenHandsSource
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.sources.benchmarks.agentdojo import AgentDojoSource
from agent_pipeline.sources.benchmarks.atif import ATIFSource
from agent_pipeline.sources.benchmarks.inspect_ai import InspectSource
from agent_pipeline.sources.benchmarks.omniagents_eval import OmniagentsEvalSource
from agent_pipeline.sources.benchmarks.swe_agent import SWEAgentSource
from agent_pipeline.sources.benchmarks.swink import SwinkSource
from agent_pipeline.sources.benchmarks.tau2 import Tau2Source
from agent_pipeline.sources.benchmarks.tau_bench import TauBenchSource
from agent_pipeline.sources.benchmarks.toolbench import ToolBenchSource
from agent_pipeline.sources.formats.plain import OpenAIChatSource, ResponsesSource, ShareGPTSource
from agent_pipeline.sources.platforms.langfuse import LangfuseSource
from agent_pipeline.sources.platforms.langsmith import LangSmithSource
from agent_pipeline.sources.platforms.litellm import LiteLLMSource
from agent_pipeline.sources.platforms.mlflow import MLflowSource
from agent_pipeline.sources.platforms.opentelemetry import OpenInferenceSource, OpenTelemetrySource

Reader = type[TraceSource]

SOURCES: tuple[Reader, ...] = (
    OmniagentsSource,
    OpenAIAgentsSource,
    OpenAITracesSource,
    OpenInferenceSource,
    OpenTelemetrySource,
    LangfuseSource,
    LangSmithSource,
    MLflowSource,
    LiteLLMSource,
    ClaudeCodeSource,
    CodexSource,
    GeminiCLISource,
    OpenHandsSource,
    SwinkSource,
    OmniagentsEvalSource,
    TauBenchSource,
    Tau2Source,
    AgentDojoSource,
    ATIFSource,
    InspectSource,
    ToolBenchSource,
    SWEAgentSource,
    # The plain forms come last: other formats' records have messages too.
    OpenAIChatSource,
    ResponsesSource,
    ShareGPTSource,
)
"""Of two readers that know a path, the first is taken."""
