/** The listener with a certificate of its own. */

import { afterAll, beforeAll, expect } from "bun:test";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect, type TLSSocket } from "node:tls";
import { run } from "../../../src/system/exec.ts";
import { heldTest } from "../../support/api/program.ts";
import { get, IngressScene, ok } from "../../support/ingress/scene.ts";
import { until } from "../../support/waiting.ts";

let directory: string;
let scene: IngressScene;
let ca: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-ingress-tls-"));
  const [cert, key] = [join(directory, "cert.pem"), join(directory, "key.pem")];
  const names = ["-subj", "/CN=box.test", "-addext", "subjectAltName=DNS:*.box.test"];
  const options = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", cert];
  await run({ argv: ["openssl", "req", "-x509", ...options, ...names], timeoutMs: 30_000 });
  ca = await readFile(cert, "utf8");
  scene = new IngressScene({ tls: { cert, key } });
});
afterAll(async () => {
  await scene[Symbol.asyncDispose]();
  await rm(directory, { recursive: true, force: true });
});

async function client(): Promise<TLSSocket> {
  const socket = connect({ port: scene.listener.port, host: "127.0.0.1", servername: "a.box.test", ca });
  await new Promise<void>((resolve, reject) => socket.once("secureConnect", resolve).once("error", reject));
  return socket;
}

heldTest("speaks TLS, says so to the guest, and passes large bodies both ways", async () => {
  const sizeBytes = 8 << 20;
  let receivedBytes = 0;
  let head = "";
  await scene.guest("a.box.test", (guest) => {
    const at = guest.text.indexOf("\r\n\r\n");
    head ||= guest.text.slice(0, at);
    receivedBytes = guest.text.length - at - 4;
    if (receivedBytes === sizeBytes) guest.socket.end(Buffer.concat([Buffer.from(ok("")), Buffer.alloc(0)]));
  });
  const socket = await client();
  let text = "";
  socket.on("data", (bytes) => {
    text += bytes.toString("latin1");
  });
  socket.write(`POST / HTTP/1.1\r\nHost: a.box.test\r\nContent-Length: ${sizeBytes}\r\n\r\n`);
  socket.write(Buffer.alloc(sizeBytes, "x"));
  await until("the answer arrives", () => text === ok(""));
  expect(receivedBytes).toBe(sizeBytes);
  expect(head).toContain("X-Forwarded-Proto: https");
  await scene.answering(
    "b.box.test",
    Buffer.concat([Buffer.from("HTTP/1.1 200 OK\r\n\r\n"), Buffer.alloc(sizeBytes, "y")]),
  );
  text = "";
  socket.write(get("b.box.test", "Connection: close"));
  await new Promise<void>((resolve) => socket.once("close", () => resolve()));
  expect(text.length).toBeGreaterThan(sizeBytes);
  expect(text).toEndWith("y\r\n0\r\n\r\n");
});

heldTest("serves nothing without TLS, and loses no place by clients without a handshake", async () => {
  await scene.answering("a.box.test", ok("yes"));
  expect(await scene.ask(get("a.box.test"))).not.toContain("yes");
  const silent = await scene.client();
  const socket = await client();
  socket.write(get("a.box.test", "Connection: close"));
  await new Promise<void>((resolve) => socket.once("close", () => resolve()).resume());
  silent.socket.destroy();
  await until("no connection is left", () => scene.listener.clientsCount === 0);
});
