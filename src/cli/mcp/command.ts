import { RETRY_MS } from "../../client/operation-events.ts";
import { pause } from "../../client/pause.ts";
import type { Environment } from "../../config/config.ts";
import { CLIENT_OPTIONS, isNotListening, openMcp } from "../client.ts";
import { command, expectPositionals } from "../command.ts";
import type { Io } from "../io.ts";
import { Bridge } from "./bridge.ts";
import { messagesOf } from "./messages.ts";

/** Time in which a restarting appliance listens again, in `milliseconds`. Clients wait for 60 s at most. */
const RESTART_MS_MAX = 20_000;
/** After the end of standard input, answers are waited for this long, in `milliseconds`. */
const END_MS_MAX = 2000;

export const mcpCommand = command({
  name: "mcp",
  summary: "serve an agent by the Model Context Protocol over standard input and output",
  synopsis: "",
  description:
    "A bridge to /mcp of the appliance, for clients that start a program. It ends with its standard input, and\n" +
    "cancels the calls that an agent still waits for. docs/mcp.md has the line for each client.",
  examples: ["claude mcp add coppice -- coppice mcp"],
  options: CLIENT_OPTIONS,
  async run({ options, positionals, io, environment }) {
    expectPositionals(positionals);
    return await serve(io, environment, options.url);
  },
});

async function serve(io: Io, environment: Environment, urlFlag: string | undefined): Promise<number> {
  const over = new AbortController();
  using _signals = io.onSignal(["SIGINT", "SIGTERM", "SIGHUP"], () => over.abort());
  // Reports mistakes in the settings now.
  openMcp(environment, urlFlag);
  const post = async (body: string, headers: Record<string, string>, signal: AbortSignal): Promise<Response> => {
    const giveUpAt = performance.now() + RESTART_MS_MAX;
    for (;;) {
      try {
        // The token may have been renewed.
        return await openMcp(environment, urlFlag)(body, headers, signal);
      } catch (error) {
        if (!isNotListening(error) || performance.now() > giveUpAt || over.signal.aborted) throw error;
      }
      await pause(RETRY_MS, signal);
    }
  };
  const bridge = new Bridge({
    post,
    write: (line) => io.stdout(`${line}\n`),
    say: (text) => io.stderr(`coppice mcp: ${text}\n`),
  });
  let failure: unknown = null;
  for await (const text of messagesOf(io.stdin(over.signal))) {
    // A client that cannot be answered has left.
    bridge.take(text).catch((error: unknown) => {
      failure ??= error;
      over.abort();
    });
  }
  const late = setTimeout(() => bridge.end(), over.signal.aborted ? 0 : END_MS_MAX);
  over.signal.addEventListener("abort", () => bridge.end(), { once: true });
  await bridge.idle;
  clearTimeout(late);
  if (failure !== null) throw failure;
  return 0;
}
