import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../../../src/system/exec.ts";
import { cli } from "../../support/cli/cli.ts";

let directory: string;
let server: Bun.Server<undefined>;
const at = (name: string): string => join(directory, name);

/** A private certificate authority, and a server whose certificate it signed. */
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "coppice-remote-"));
  const key = (name: string) => ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", at(`${name}.key`)];
  const openssl = (...argv: string[]) => run({ argv: ["openssl", "req", "-x509", ...argv], timeoutMs: 30_000 });
  await openssl(...key("ca"), "-out", at("ca.pem"), "-subj", "/CN=authority");
  const signed = ["-CA", at("ca.pem"), "-CAkey", at("ca.key"), "-addext", "basicConstraints=critical,CA:FALSE"];
  const names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
  await openssl(...key("server"), "-out", at("server.pem"), ...signed, ...names);
  server = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    tls: { cert: await readFile(at("server.pem"), "utf8"), key: await readFile(at("server.key"), "utf8") },
    fetch: (request) => Response.json([{ uuid: request.headers.get("authorization"), created_at: "now" }]),
  });
}, 60_000);
afterAll(async () => {
  await server.stop(true);
  await rm(directory, { recursive: true });
});

const listing = (environment: Record<string, string>) =>
  cli(["image", "ls"], {
    environment: {
      HOME: directory,
      COPPICE_URL: `https://localhost:${server.port}`,
      COPPICE_TOKEN: "t",
      ...environment,
    },
  });

test("an appliance with a certificate of a private authority is trusted when that authority is named", async () => {
  const { code, stdout } = await listing({ COPPICE_CA_FILE: at("ca.pem") });
  expect([code, stdout.toString()]).toEqual([0, expect.stringContaining("Bearer t")]);
});

test("and when it is in ~/.config/coppice/ca.pem", async () => {
  await Bun.write(at(".config/coppice/ca.pem"), await readFile(at("ca.pem"), "utf8"));
  expect((await listing({})).code).toBe(0);
  await rm(at(".config"), { recursive: true });
});

test("otherwise it is not trusted, nothing is sent, and the error says what to do", async () => {
  const { code, stdout, stderr } = await listing({});
  expect([code, stdout.length]).toEqual([1, 0]);
  expect(stderr).toMatch(/cannot reach an appliance at https:\/\/localhost.*COPPICE_CA_FILE/);
});

test("a certificate of that authority for another name is not trusted", async () => {
  const { code } = await listing({
    COPPICE_CA_FILE: at("ca.pem"),
    COPPICE_URL: `https://127.0.0.1:${server.port}`,
  });
  expect(code).toBe(1);
});

test("plain HTTP to a TLS port fails with advice instead of the library's error", async () => {
  const { code, stderr } = await listing({ COPPICE_URL: `http://localhost:${server.port}` });
  expect([code, stderr]).toEqual([1, expect.stringMatching(/: the connection was closed; does it want https\?\n$/)]);
});
