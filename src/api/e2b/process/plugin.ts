import { Elysia } from "elysia";
import type { E2bParts } from "../options.ts";
import { clientStream, serverStream, unary } from "../rpc/connect.ts";
import { KEEPALIVE } from "./events.ts";
import { processMethods } from "./methods.ts";

const PROCESS = "/process.Process";
const SCOPE = "instances:exec";
/** Longest message of a unary call, in `bytes`: one input of a process. */
const MESSAGE_BYTES_MAX = 16_777_216;

/** The agent's service process.Process. */
export function processPlugin(parts: E2bParts): Elysia {
  const { unary: methods, start, connect, streamInput } = processMethods(parts);
  const { access, calls } = parts;
  const app = new Elysia().use(access);
  for (const [name, method] of Object.entries(methods)) {
    const bytesMax = name === "SendInput" ? { bytesMax: MESSAGE_BYTES_MAX } : {};
    app.post(`${PROCESS}/${name}`, unary(method), { takes: { scope: SCOPE, waitsForGuest: true, ...bytesMax } });
  }
  app.post(`${PROCESS}/Start`, serverStream(start, { calls, keepalive: KEEPALIVE }), {
    reads: SCOPE,
    parse: () => null,
  });
  app.post(`${PROCESS}/Connect`, serverStream(connect, { calls, keepalive: KEEPALIVE }), {
    reads: SCOPE,
    parse: () => null,
  });
  app.post(`${PROCESS}/StreamInput`, clientStream(streamInput, calls), { reads: SCOPE, parse: () => null });
  return app as unknown as Elysia;
}
