import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { createHash, randomBytes } from "node:crypto";
import { once } from "node:events";
import { connect, type Socket } from "node:net";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { CliProcess } from "../../support/cli/cli-process.ts";

setDefaultTimeout(180_000);

const MIB = 1_048_576;

const owned = new AsyncDisposableStack();
let appliance: Appliance;
let instance: string;

beforeAll(async () => {
  const setup = owned.use(await BusyboxAppliance.start({ tag: "busybox" }));
  const { image } = setup;
  appliance = setup.appliance;
  // Port 7 echoes its input, and adds a word at the end; 8 writes while it reads; 80 serves files.
  const script =
    "nc -ll -p 7 -e sh -c 'cat; echo end' & " +
    "nc -ll -p 8 -e sh -c 'head -c 8388608 /dev/zero & wc -c > /count; wait; cat /count' & " +
    "mkdir /www; echo page > /www/x; " +
    // The file server starts last: once it answers, all servers do.
    'for port in 0007 0008; do until grep -q ":$port 0*:0000 0A" /proc/net/tcp /proc/net/tcp6; do :; done; done; ' +
    "httpd -h /www; echo up; wait";
  instance = await appliance.spawn({ image, command: script, shell: true, disposable: true, timeout: 600 });
});

afterAll(async () => {
  await owned.disposeAsync();
});

/** Local ports of a `forward` that listens, in the order of its rules. */
async function listening(forward: CliProcess, count: number): Promise<number[]> {
  await forward.says(new RegExp(`(?:127[^>]+-> \\d+\\s+){${count}}`));
  return [...forward.stdout.matchAll(/127\.0\.0\.1:(\d+) ->/g)].map(([, port]) => Number(port));
}

/** Resolves when the programs of the guest listen, which is not reported otherwise. */
async function guestListens(port: number): Promise<void> {
  while (
    !(await fetch(`http://127.0.0.1:${port}/x`).then(
      (response) => response.ok,
      () => false,
    ))
  );
}

async function all(socket: Socket): Promise<Buffer> {
  return Buffer.concat(await Array.fromAsync(socket as AsyncIterable<Buffer>));
}

test("connections reach the guest: many, long, half-closed, refused", async () => {
  await executing();
  using forward = new CliProcess(appliance, ["forward", instance, "0:7", "0:80", "0:9"]);
  const [echo = 0, web = 0, closed = 0] = await listening(forward, 3);
  await guestListens(web);

  const pages = await Promise.all(
    Array.from({ length: 20 }, async () => await (await fetch(`http://127.0.0.1:${web}/x`)).text()),
  );
  expect(new Set(pages)).toEqual(new Set(["page\n"]));

  // The peer closes its side, and still receives everything from the other.
  const sent = randomBytes(4 * MIB);
  const socket = connect({ host: "127.0.0.1", port: echo, allowHalfOpen: true });
  socket.end(sent);
  const got = await all(socket);
  const digest = (bytes: Uint8Array) => createHash("sha256").update(bytes).digest("hex");
  expect([got.length, digest(got.subarray(0, sent.length))]).toEqual([sent.length + 4, digest(sent)]);
  expect(got.subarray(sent.length).toString()).toBe("end\n");

  const refused = connect({ host: "127.0.0.1", port: closed });
  const [error] = await Promise.race([once(refused, "close").then(() => [null]), once(refused, "error")]).catch(
    (thrown) => [thrown],
  );
  expect((error as NodeJS.ErrnoException).code).toBe("ECONNRESET");
  await forward.says(/port 9 of the instance did not accept a connection: refused/);
  // Other connections still work.
  expect(await (await fetch(`http://127.0.0.1:${web}/x`)).text()).toBe("page\n");
  forward.signal("SIGINT");
  expect(await forward.ended()).toBe(130);
});

test("a peer that writes 64 MiB before it reads gets what the program in the guest wrote meanwhile", async () => {
  await executing();
  using forward = new CliProcess(appliance, ["forward", instance, "0:8", "0:80"]);
  const [both = 0, web = 0] = await listening(forward, 2);
  await guestListens(web);
  const socket = connect({ host: "127.0.0.1", port: both, allowHalfOpen: true });
  socket.pause();
  await new Promise<void>((resolve) => socket.end(Buffer.alloc(64 * MIB), resolve));
  const got = await all(socket);
  expect(
    got
      .subarray(8 * MIB)
      .toString()
      .trim(),
  ).toBe(String(64 * MIB));
  forward.signal("SIGINT");
  expect(await forward.ended()).toBe(130);
});

test("it ends with the instance, and does not start without a running one", async () => {
  await executing();
  using forward = new CliProcess(appliance, ["forward", instance, "0:80"]);
  await listening(forward, 1);
  await appliance.fetch(`/operations/${instance}`, { method: "DELETE" });
  expect(await forward.ended()).toBe(0);
  expect(forward.stderr).toContain("the instance has ended (CANCELLED)");
  const late = await appliance.command(["forward", instance, "0:80"]);
  expect([late.code, late.stderr]).toEqual([1, expect.stringContaining("is not running: it is CANCELLED")]);
});

async function executing(): Promise<void> {
  for (;;) {
    const { status } = (await (await appliance.fetch(`/operations/${instance}?wait=1`)).json()) as { status: string };
    if (status !== "PENDING") return;
  }
}
