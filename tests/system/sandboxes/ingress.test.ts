/** Programs of real sandboxes, as clients outside reach them. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { freePort } from "../../support/free-port.ts";
import { Peer } from "../../support/ingress/scene.ts";
import { http, Outside } from "../../support/outside.ts";
import { SandboxClient } from "../../support/sandboxes/client.ts";
import { until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(240_000);

/** Size of a page that fills every window on its way, in `bytes`. */
const LARGE_BYTES = 6_000_000;
/** A program that switches protocols, and then sends back what it gets. */
const ECHO = [
  "#!/bin/sh",
  "end=$(printf '\\r')",
  'while read -r line && [ "$line" != "$end" ]; do :; done',
  "printf 'HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n\\r\\n'",
  "exec cat",
].join("\n");
/** A program that answers a request. */
const GREETING = [
  ...["#!/bin/sh", "end=$(printf '\\r')"],
  'while read -r line && [ "$line" != "$end" ]; do :; done',
  "printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 14\\r\\n\\r\\nfrom the guest'",
].join("\n");
/** A program that begins an answer, and never ends it. */
const ENDLESS = "#!/bin/sh\nprintf 'HTTP/1.1 200 OK\\r\\nContent-Length: 100\\r\\n\\r\\nbegin'\nexec sleep 1000";

/** A name of the host itself. */
const OUTSIDE = "own.site.test";

let outside: Outside;
let busybox: BusyboxAppliance;
let port: number;
/** of the listener for clients of E2B */
let e2bPort: number;
beforeAll(async () => {
  [port, e2bPort] = [await freePort(), await freePort()];
  outside = await Outside.start(OUTSIDE);
  busybox = await BusyboxAppliance.start({
    flags: [
      ...["--ingress-listen", `127.0.0.1:${port}`, "--ingress-public", "allow"],
      ...["--e2b-listen", `127.0.0.1:${e2bPort}`],
      ...["--network-allow", `${OUTSIDE}:*`, "--network-private", "127.0.0.0/8"],
      ...["--network-resolvers", outside.names.address],
    ],
  });
});
afterAll(async () => {
  await busybox?.[Symbol.asyncDispose]();
  await outside?.[Symbol.asyncDispose]();
});

const hostOf = (sandbox: SandboxClient, guestPort: number) => `${guestPort}-${sandbox.id}.localhost:${port}`;

async function ask(host: string, headers: Readonly<Record<string, string>> = {}, path = "/"): Promise<Response> {
  return await fetch(`http://127.0.0.1:${port}${path}`, { headers: { host, ...headers }, redirect: "manual" });
}

/** Starts a program that stays. */
async function start(sandbox: SandboxClient, command: string): Promise<void> {
  expect((await sandbox.post("processes", { command, shell: true })).status).toBe(201);
}

/** Writes a script, and serves it for each connection to a port. */
async function serve(sandbox: SandboxClient, guestPort: number, script: string): Promise<void> {
  const path = `/root/script-${guestPort}`;
  const content = Buffer.from(script).toString("base64");
  await sandbox.run(`echo ${content} | base64 -d > ${path}; chmod +x ${path}`);
  await start(sandbox, `exec nc -ll -p ${guestPort} -e ${path}`);
}

test("a web server is reached by tokens and links, through pauses, to its end", async () => {
  const { appliance, image } = busybox;
  const sandbox = await SandboxClient.open(appliance, { image, name: "dev" });
  const { urls } = (await sandbox.get()) as unknown as { urls: { pattern: string } };
  expect(urls.pattern).toBe(`http://{port}-${sandbox.id}.localhost:${port}/`);
  await sandbox.run(`mkdir /www; echo hello > /www/index.html; head -c ${LARGE_BYTES} /dev/zero > /www/large`);
  const token = { "x-access-token": appliance.token };
  const host = hostOf(sandbox, 8080);
  const closed = await ask(host, token);
  expect([closed.status, await closed.json()]).toEqual([502, expect.objectContaining({ message: "port is not open" })]);
  const server = "exec httpd -f -p 127.0.0.1:8080 -h /www";
  await start(sandbox, server);
  await until("the server answers", async () => (await ask(host, token)).status === 200);
  expect(await (await ask(`8080-dev.tester.localhost:${port}`, token)).text()).toBe("hello\n");
  expect((await (await ask(host, token, "/large")).arrayBuffer()).byteLength).toBe(LARGE_BYTES);
  // Without a token, and with one of another account.
  expect((await ask(host)).status).toBe(401);
  const foreign = await appliance.createToken("stranger");
  expect((await ask(host, { "x-access-token": foreign })).status).toBe(404);
  const { body } = await sandbox.post("links", { port: 8080 });
  const link = new URL((body as { url: string }).url);
  const opened = await ask(link.host, {}, `${link.pathname}${link.search}`);
  expect([opened.status, opened.headers.get("location")]).toEqual([303, "/"]);
  const cookie = opened.headers.get("set-cookie")?.split(";")[0] ?? "";
  expect(await (await ask(host, { cookie })).text()).toBe("hello\n");
  await sandbox.change({ public_ports: [8080] });
  expect(await (await ask(host)).text()).toBe("hello\n");

  await sandbox.becomes("paused", "pause?wait=60");
  // Its processes ended with its machine.
  expect((await ask(host, { cookie })).status).toBe(502);
  expect((await sandbox.get()).state).toBe("running");
  await start(sandbox, server);
  await until("the server answers", async () => (await ask(host, { cookie })).status === 200);
  await sandbox.change({ auto_resume: false });
  await sandbox.becomes("paused", "pause?wait=60");
  const paused = await ask(host, { cookie });
  expect([paused.status, await paused.text()]).toEqual([503, expect.stringContaining("the sandbox is paused")]);
  await sandbox.end();
  expect((await ask(host, { cookie })).status).toBe(410);
});

test("a guest that may reach addresses of the host reaches no listener of the appliance there", async () => {
  const { appliance, image } = busybox;
  const other = await outside.serve(http((path) => path));
  const sandbox = await SandboxClient.open(appliance, { image, network: { allow: [{ host: OUTSIDE, ports: "*" }] } });
  const ports = [other.port, Number(new URL(appliance.url).port), port, e2bPort];
  const { output } = await sandbox.run(
    `for port in ${ports.join(" ")}; do printf "GET / HTTP/1.0\\r\\n\\r\\n" | timeout 9 nc ${OUTSIDE} $port | head -n 1; echo over; done`,
  );
  expect(output).toMatch(/^HTTP\/1\.1 200 OK\r\nover\nover\nover\nover\n$/);
  await sandbox.end();
});

test("clients of E2B reach ports and the agent's place of a sandbox, through a pause, to its end", async () => {
  const { appliance, image } = busybox;
  const sandbox = await SandboxClient.open(appliance, { image, auto_resume: true, public_ports: [9000] });
  await serve(sandbox, 9000, GREETING);
  const id = sandbox.id.replaceAll("-", "");
  const by = (host: string, path: string) => fetch(`http://127.0.0.1:${e2bPort}${path}`, { headers: { host } });
  await until("it listens", async () => (await by(`9000-${id}.a`, "/")).status === 200);
  expect(await (await by(`9000-${id}.a`, "/")).text()).toBe("from the guest");
  expect((await by(`49983-${id}.a`, "/health")).status).toBe(204);
  await sandbox.becomes("paused", "pause?wait=60");
  expect((await by(`49983-${id}.a`, "/health")).status).toBe(502);
  // The request resumes it, and its programs are gone with its memory.
  expect(await (await by(`9000-${id}.a`, "/")).json()).toMatchObject({ code: 502, port: 9000, sandboxId: id });
  expect((await by(`49983-${id}.a`, "/health")).status).toBe(204);
  await sandbox.end();
  expect(await (await by(`9000-${id}.a`, "/")).json()).toMatchObject({ message: "The sandbox was not found" });
});

test("a tunnel carries bytes both ways, and a program that dies cuts its answer", async () => {
  const sandbox = await SandboxClient.open(busybox.appliance, { image: busybox.image, public_ports: [9000, 9001] });
  await serve(sandbox, 9000, ECHO);
  await serve(sandbox, 9001, ENDLESS);
  await until("both listen", async () => {
    const { output } = await sandbox.run("netstat -ltn | grep -c ':900[01] '");
    return output === "2\n";
  });
  const requestTo = (guestPort: number, ...fields: readonly string[]) =>
    ["GET / HTTP/1.1", `Host: ${hostOf(sandbox, guestPort)}`, ...fields, "", ""].join("\r\n");
  const socket = await Peer.connect(port);
  socket.send(requestTo(9000, "Connection: Upgrade", "Upgrade: websocket"));
  await socket.until("HTTP/1.1 101 Switching Protocols\r\n");
  socket.send("one");
  await socket.until("\r\n\r\none");
  const rest = "x".repeat(1_000_000);
  socket.send(`${rest}.`);
  await socket.until("x.");
  expect(socket.text).toEndWith(`one${rest}.`);
  socket.socket.destroy();

  const client = await Peer.connect(port);
  client.send(requestTo(9001));
  await client.until("begin");
  await sandbox.run("kill -9 $(pidof sleep)");
  await client.closed;
  expect(client.text).toEndWith("begin");
  await sandbox.end();
});
