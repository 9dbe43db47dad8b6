import type { Sample } from "./samples.ts";

/** Every route of the Model Context Protocol with a valid request, which a test then breaks. */
export const MCP_SAMPLES: readonly Sample[] = [
  { method: "POST", path: "/mcp", scope: null, json: { jsonrpc: "2.0", id: 1, method: "ping" } },
  { method: "DELETE", path: "/mcp", scope: null },
];
