/** Damaged requests and answers: each side sees whole messages, or none. */

import { afterEach, beforeEach, describe, expect } from "bun:test";
import { createServer } from "node:http";
import { createLog } from "../../../src/log.ts";
import { heldTest } from "../../support/api/program.ts";
import { get, IngressScene, ok } from "../../support/ingress/scene.ts";
import { seededRandom, seedOfTests } from "../../support/random.ts";
import { until } from "../../support/waiting.ts";

const RUNS_COUNT = 400;
const REQUESTS: readonly string[] = [
  get("a.test", "Cookie: a=b", "Accept: */*"),
  "POST /p HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello",
  "POST /p HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x\r\nabc\r\n0\r\nT: 1\r\n\r\n",
];
const ANSWERS: readonly string[] = [
  ok("hello", "Set-Cookie: a=b; Domain=test"),
  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nabc\r\n0\r\n\r\n",
  "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
];
/** Pieces that messages break at. */
const SALT = [
  "\r\n",
  "\n",
  "\r",
  "\0",
  " ",
  ":",
  "\t",
  "0",
  "Content-Length: 3\r\n",
  "Transfer-Encoding: chunked\r\n",
  "\r\n\r\n",
];

const random = seededRandom(seedOfTests());
let scene: IngressScene;
let errors: string[];
beforeEach(() => {
  errors = [];
  const log = createLog({ level: "error", format: "json", write: (line) => void errors.push(line) });
  scene = new IngressScene({ log });
});
afterEach(() => scene[Symbol.asyncDispose]());

function damaged(text: string): string {
  let bytes = text;
  for (let n = 1 + random.below(3); n > 0; n--) {
    const at = random.below(bytes.length);
    const piece =
      random.below(2) === 0 ? (SALT[random.below(SALT.length)] ?? "") : String.fromCharCode(random.below(256));
    bytes = bytes.slice(0, at) + piece + bytes.slice(at + random.below(3));
  }
  return bytes;
}

describe(`with seed ${seedOfTests()}`, () => {
  heldTest("a strict server sees every request that passes as the ingress does", async () => {
    const bodies: string[] = [];
    const broken: unknown[] = [];
    const server = createServer({ insecureHTTPParser: false }, (request, response) => {
      let text = "";
      request.on("data", (piece) => {
        text += String(piece);
      });
      request.on("end", () => {
        bodies.push(`${request.method} ${text}`);
        response.end("ok");
      });
    });
    server.on("clientError", (error, socket) => {
      broken.push((error as NodeJS.ErrnoException).code);
      socket.destroy();
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    scene.serve("a.test", (server.address() as { port: number }).port);
    let passedCount = 0;
    for (let run = 0; run < RUNS_COUNT; run++) {
      bodies.length = 0;
      const peer = await scene.client();
      peer.send(damaged(REQUESTS[random.below(REQUESTS.length)] ?? ""));
      // A complete request follows, which must never be part of the one before.
      peer.send("GET /end HTTP/1.1\r\nHost: end.test\r\nConnection: close\r\n\r\n");
      peer.socket.end();
      await peer.closed;
      passedCount += bodies.length;
      expect(bodies.length).toBeLessThanOrEqual(1);
    }
    server.close();
    expect(passedCount).toBeGreaterThan(0);
    // The client may leave in the middle, and use a method that the server does not know.
    const expected = ["HPE_INVALID_EOF_STATE", "HPE_INVALID_METHOD"];
    expect(broken.filter((code) => !expected.includes(String(code)))).toEqual([]);
    await until("no connection is left", () => scene.listener.clientsCount === 0 && scene.connectionsCount === 0);
    expect(errors).toEqual([]);
  });

  heldTest("a client gets whole answers, or the ingress's own, or a connection that is cut", async () => {
    let bytes = "";
    await scene.guest("a.test", ({ socket, text }) => {
      if (text.includes("\r\n\r\n")) socket.end(Buffer.from(bytes, "latin1"));
    });
    for (let run = 0; run < RUNS_COUNT; run++) {
      bytes = damaged(ANSWERS[random.below(ANSWERS.length)] ?? "");
      const text = await scene.ask(get("a.test", "Connection: close"));
      expect(text).toMatch(
        /^(?:HTTP\/1\.1 1\d\d .*\r\n(?:.+\r\n)*\r\n)*(?:HTTP\/1\.1 [2-5]\d\d .*\r\n(?:.+\r\n)*\r\n|$)/,
      );
      const [head = ""] = text.slice(Math.max(0, text.search(/HTTP\/1\.1 [2-5]/))).split("\r\n\r\n");
      expect(head).not.toMatch(/\0|[^\r]\n|\r[^\n]|^set.cookie:.*; *domain *(?:=|;|$)/im);
      expect((head.match(/^(?:content-length|transfer-encoding):/gim) ?? []).length).toBeLessThanOrEqual(1);
    }
    await until("no connection is left", () => scene.listener.clientsCount === 0 && scene.connectionsCount === 0);
    expect(errors).toEqual([]);
  });
});
