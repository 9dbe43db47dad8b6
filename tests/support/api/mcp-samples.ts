import type { Sample } from "./samples.ts";

/** Every route of the Model Context Protocol with a valid request, from which a test makes invalid ones. */
export const MCP_SAMPLES: readonly Sample[] = [
  { method: "POST", path: "/mcp", scope: null, json: { jsonrpc: "2.0", id: 1, method: "ping" } },
  { method: "DELETE", path: "/mcp", scope: null },
];
