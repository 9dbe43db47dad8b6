import { describe, expect, test } from "bun:test";
import { Bridge } from "../../../src/cli/mcp/bridge.ts";
import { MESSAGE_BYTES_MAX, messagesOf, standardHeaders } from "../../../src/cli/mcp/messages.ts";
import { UnreachableError } from "../../../src/client/errors.ts";

async function messages(chunks: readonly string[]): Promise<(string | null)[]> {
  // Each chunk reuses the memory of the previous one.
  const memory = Buffer.alloc(Math.max(0, ...chunks.map((chunk) => Buffer.byteLength(chunk))));
  const stream = (async function* () {
    for (const chunk of chunks) yield memory.subarray(0, memory.write(chunk));
  })();
  return await Array.fromAsync(messagesOf(stream));
}

describe("lines of standard input", () => {
  test("are messages, in pieces of any size", async () => {
    expect(await messages(["{}\n{", '"a":1}\r\n', "\n", '{"b', '":"ü', '"}'])).toEqual(["{}", '{"a":1}', '{"b":"ü"}']);
    expect(await messages([])).toEqual([]);
  });

  test("that are too long are dropped, and the next one is read", async () => {
    const long = "x".repeat(MESSAGE_BYTES_MAX);
    expect(await messages([`${long}y\n{}`, "\n", long, "\n", long, long])).toEqual([null, "{}", long, null]);
  });
});

describe("headers", () => {
  const meta = { "io.modelcontextprotocol/protocolVersion": "2026-07-28" };

  test("repeat the fields that the protocol of 2026 requires", () => {
    expect(standardHeaders({ method: "tools/call", params: { name: "run", _meta: meta } })).toEqual({
      "mcp-protocol-version": "2026-07-28",
      "mcp-method": "tools/call",
      "mcp-name": "run",
    });
    expect(standardHeaders({ method: "tools/list", params: { name: "x" } })).toEqual({});
    for (const method of [5, null, {}]) expect(standardHeaders({ method, params: { _meta: meta } })).toEqual({});
    expect(standardHeaders({ method: "constructor", params: { name: "x", _meta: meta } })).not.toHaveProperty(
      "mcp-name",
    );
  });

  test("have only values that a header can have", () => {
    const name = (uri: string) =>
      standardHeaders({ method: "resources/read", params: { uri, _meta: meta } })["mcp-name"];
    expect(name("coppice://a b")).toBe("coppice://a b");
    for (const uri of ["ü", "a\r\nx: y", " a", "=?base64?eA==?="]) {
      const encoded = /^=\?base64\?(.*)\?=$/.exec(name(uri) ?? "")?.[1] ?? "";
      expect(Buffer.from(encoded, "base64").toString("utf8")).toBe(uri);
    }
  });
});

describe("the bridge", () => {
  const stream = (...events: string[]) =>
    new Response(events.map((event) => `data: ${event}\n\n`).join(""), {
      headers: { "content-type": "text/event-stream", "mcp-session-id": "s" },
    });

  /** A bridge whose requests `post` answers. */
  function bridged(post: (body: string, headers: Record<string, string>, signal: AbortSignal) => Promise<Response>) {
    const lines: unknown[] = [];
    const said: string[] = [];
    const write = async (line: string) => void lines.push(JSON.parse(line));
    return { bridge: new Bridge({ post, write, say: (text) => void said.push(text) }), lines, said };
  }
  const request = (id: number, method: string) => JSON.stringify({ jsonrpc: "2.0", id, method });

  test("sends the session and the version of the handshake", async () => {
    const seen: Record<string, string>[] = [];
    const { bridge, lines } = bridged(async (body, headers) => {
      seen.push(headers);
      const { id } = JSON.parse(body) as { id: number };
      return stream(JSON.stringify({ jsonrpc: "2.0", id, result: { protocolVersion: "2025-11-25" } }));
    });
    await bridge.take(request(1, "initialize"));
    await bridge.take(request(2, "ping"));
    await bridge.take(request(3, "initialize"));
    const session = { "mcp-session-id": "s", "mcp-protocol-version": "2025-11-25" };
    expect(seen).toEqual([{}, session, {}]);
    expect(lines).toHaveLength(3);
  });

  test("gives every request one answer", async () => {
    const { bridge, lines, said } = bridged(async (body) => {
      const { id, method } = JSON.parse(body) as { id?: number; method: string };
      if (method === "none") return stream(JSON.stringify({ jsonrpc: "2.0", method: "notifications/progress" }));
      if (method === "refused") {
        const error = { jsonrpc: "2.0", error: { code: -1, message: "no" }, id: null };
        return Response.json(error, { status: 400 });
      }
      if (method === "proxy") return new Response("<html>", { status: 502 });
      if (id === undefined) return new Response(null, { status: 202 });
      throw new UnreachableError("no server");
    });
    for (const [id, method] of ["none", "refused", "proxy", "away"].entries()) await bridge.take(request(id, method));
    await bridge.take(JSON.stringify({ jsonrpc: "2.0", method: "notifications/initialized" }));
    const answers = lines.filter((line) => !("method" in (line as object))) as {
      id: number;
      error: { message: string };
    }[];
    expect(answers.map(({ id, error }) => [id, error.message])).toEqual([
      [0, expect.stringContaining("stopped before its answer")],
      [1, "no"],
      [2, expect.stringContaining("HTTP status 502")],
      [3, "no server"],
    ]);
    expect(said).toHaveLength(3);
    await bridge.idle;
  });

  test("aborts a request that the client cancels, and does not answer it", async () => {
    const left: unknown[] = [];
    const { bridge, lines } = bridged(async (body, _headers, signal) => {
      if (body.includes("cancelled")) return new Response(null, { status: 202 });
      return await new Promise((_resolve, reject) => {
        signal.addEventListener("abort", () => {
          left.push((JSON.parse(body) as { id: unknown }).id);
          reject(signal.reason);
        });
      });
    });
    const calls = [bridge.take(request(1, "tools/call")), bridge.take(request(2, "tools/call"))];
    await bridge.take('{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}');
    await calls[0];
    expect(left).toEqual([1]);
    bridge.end();
    await Promise.all(calls);
    await bridge.idle;
    expect(left).toEqual([1, 2]);
    expect(lines).toEqual([]);
  });
});
