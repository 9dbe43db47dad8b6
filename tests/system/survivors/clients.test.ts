/** Clients of a sandbox whose daemon is killed: each continues with the next daemon, at the same address. */
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { connect, type Socket } from "node:net";
import { AttachedClient } from "../../support/api/attached.ts";
import { TestSocket } from "../../support/api/socket.ts";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { CliProcess } from "../../support/cli/cli-process.ts";
import { CliTerminal } from "../../support/cli/cli-terminal.ts";
import { freePort } from "../../support/free-port.ts";
import { SandboxClient, type WireEvent } from "../../support/sandboxes/client.ts";
import { AddedProcess, replaceDaemon } from "../../support/survivors/client.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(180_000);

const LINES_COUNT = 1500;
const LINES = Array.from({ length: LINES_COUNT }, (_, at) => `line ${at + 1}\n`).join("");
/** Numbered lines, quickly at first, and over the whole kill. */
const TALK = `i=0; while [ $i -lt ${LINES_COUNT} ]; do i=$((i+1)); echo line $i; [ $((i % 10)) = 0 ] && sleep 0.02; done`;
const PIECES = Array.from({ length: 40 }, (_, at) => `${String(at).padStart(4, "0")}:${"x".repeat(1000)}\n`);
const HTTP = 8080;
const ECHO = 8081;
const SINK = 8082;

const owned = new AsyncDisposableStack();
/** The first line that is not as it was written; null: all are. */
function firstDifference(output: string): { readonly line: string | undefined; readonly at: number } | null {
  const [lines, written] = [output.split("\n"), LINES.split("\n")];
  const at = written.findIndex((line, index) => line !== lines[index]);
  if (at < 0) return output === LINES ? null : { line: lines[written.length], at: written.length };
  return { line: lines[at], at };
}
let appliance: Appliance;
let sandbox: SandboxClient;
let editor: CliTerminal;
let input: AddedProcess;
let talker: AddedProcess;
let lossless: CliProcess;
let attached: CliProcess;
let followed: CliProcess;
let forward: CliProcess;
let sink: AddedProcess;
/** connections that are open when the daemon is killed */
let tcp: { readonly socket: Socket; readonly closed: Promise<void> };
let web: TestSocket;

const shell = (command: string, more: object = {}) =>
  AddedProcess.start(appliance, `/sandboxes/${sandbox.id}`, { command, shell: true, ...more });
const portOf = async (remote: number): Promise<number> =>
  Number((await forward.says(new RegExp(`127.0.0.1:(\\d+) -> ${remote}\n`)))[1]);

/** A connection of a client, with the promise of its end. */
async function connected(port: number): Promise<typeof tcp> {
  const socket = connect(port, "127.0.0.1");
  const closed = new Promise<void>((resolve) => socket.once("close", () => resolve()));
  socket.on("error", () => undefined);
  await new Promise<void>((resolve) => socket.once("connect", () => resolve()));
  return { socket, closed };
}

/** A WebSocket to the server that echoes, which may not listen yet. */
async function echoing(): Promise<TestSocket> {
  let socket: TestSocket | null = null;
  await until("the server accepts", async () => {
    socket = await TestSocket.open(appliance, `/v1/sandboxes/${sandbox.id}/ports/${ECHO}`).catch(() => null);
    return socket !== null;
  });
  return socket as unknown as TestSocket;
}

const cli = (...words: string[]) => owned.use(new CliProcess(appliance, words));

beforeAll(async () => {
  const flags = ["--listen-port", String(await freePort())];
  ({ appliance } = owned.use(await BusyboxAppliance.start({ poolSize: 0, tag: "busybox", flags })));
  sandbox = await SandboxClient.open(appliance, { image: "tag:busybox", name: "dev", timeout: 900 });

  followed = cli("logs", "-f", "--json", "dev");
  editor = owned.use(new CliTerminal(appliance, ["exec", "-it", "dev", "sh"]));
  await editor.shows("# ");
  editor.type("vi /root/file\r");
  await editor.shows("- /root/file");
  editor.type("ifirst line\rsecond line\x1b");
  await editor.shows(/- \/root\/file \[modified\]/i);
  // Into the middle of the first line, and into insert mode there.
  editor.type("1G06li");
  await editor.shows("I /root/file");
  editor.type("new ");
  await editor.shows("new line");

  input = await shell("tee /root/input | sha256sum", { stdin_open: true });
  for (const piece of PIECES.slice(0, 20)) expect(await input.write(piece)).toBe(204);

  sink = await shell(`nc -l -p ${SINK}; echo "closed with $?"`);
  await shell(`mkdir /root/www; echo served > /root/www/page; httpd -f -p ${HTTP} -h /root/www`);
  await shell(`nc -ll -p ${ECHO} -e cat`);
  forward = cli("forward", "dev", `0:${HTTP}`, `0:${SINK}`);
  const page = `http://127.0.0.1:${await portOf(HTTP)}/page`;
  await until("it is served", async () => (await fetch(page).catch(() => null))?.status === 200);
  tcp = await connected(await portOf(SINK));
  tcp.socket.write("sent before\n");
  await sink.prints("sent before\n");
  web = owned.use(await echoing());
  web.send(Buffer.from("echo"));
  await web.until(() => web.received.includes("echo"));

  lossless = cli("exec", "dev", "--", "sh", "-c", TALK);
  lossless.closeInput();
  await lossless.says("line 1\n");
  talker = await shell(TALK, { truncate_output_at: 1_000_000 });
  attached = cli("attach", "dev", String(talker.spid));
  attached.closeInput();
  await attached.says("line 300\n");
  await replaceDaemon(appliance, () => editor.resize(100, 30));
});

afterAll(() => owned.disposeAsync());

test("an editor in a terminal continues with its cursor in place, and gets the size that its terminal has now", async () => {
  await editor.shows("the connection is lost");
  // The new size reaches it with the new connection, and it draws the whole screen.
  await editor.shows("first new line");
  editor.type("words ");
  await editor.shows("words line");
  using other = await AttachedClient.open(appliance, `/v1/sandboxes/${sandbox.id}`, { spid: 2 });
  other.type("of others ");
  await editor.shows("of others line");
  editor.type("\x1b");
  await editor.shows(/- \/root\/file \[modified\]/i);
  editor.type(":wq\r");
  await editor.shows("# ");
  editor.type("stty size; cat /root/file\r");
  await editor.shows("\n30 100\r\nfirst new words of others line\r\nsecond line\r\n");
  editor.resize(90, 20);
  editor.type("until [ \"$(stty size)\" = '20 90' ]; do sleep 0.1; done; echo small enough; exit 3\r");
  await editor.shows("\nsmall enough\r\n");
  expect(await editor.ended()).toBe(3);
});

test("an input that is open gets every byte once, and its end", async () => {
  for (const piece of PIECES.slice(20)) expect(await input.write(piece)).toBe(204);
  expect(await input.write("end", { close: true })).toBe(204);
  const whole = `${PIECES.join("")}end`;
  const sum = createHash("sha256").update(whole).digest("hex");
  expect(await input.ended()).toEqual({ output: `${sum}  -\n`, exitCode: 0 });
  expect((await sandbox.run("cat /root/input | wc -c")).output).toBe(`${whole.length}\n`);
  expect(await input.write("late")).toBe(409);
  const events = await sandbox.events();
  const stdin = events.filter(({ type, spid }) => type === "stdin" && spid === input.spid);
  expect(stdin.map(({ data }) => data)).toEqual([{ bytes: whole.length }]);
});

test("readers get every byte once: of a process that waits for them, of its log, and of the log's events", async () => {
  for (const reader of [lossless, attached]) {
    expect([await reader.ended(), reader.stderr]).toEqual([0, expect.stringMatching(/^.*connection is lost.*\n$/)]);
    expect(firstDifference(reader.stdout)).toBeNull();
  }
  expect(firstDifference((await talker.ended()).output)).toBeNull();
  await until("the follower has the end", () => followed.stdout.includes(`"spid":${talker.spid},"type":"exit"`));
  const events = followed.stdout
    .slice(0, followed.stdout.lastIndexOf("\n"))
    .split("\n")
    .map((line) => JSON.parse(line) as WireEvent);
  expect(events.map(({ id }) => id)).toEqual(events.map((_, at) => at));
  expect(events.filter(({ type }) => type === "adopted")).toHaveLength(1);
  expect(events).toEqual((await sandbox.events()).slice(0, events.length));
});

test("open connections to its ports end at once on both sides, and others can be made by the same forwarder", async () => {
  await tcp.closed;
  expect(await web.closed).toMatchObject({ code: 1006 });
  expect((await sink.ended()).output).toMatch(/^sent before\nclosed with \d+\n$/);
  const page = `http://127.0.0.1:${await portOf(HTTP)}/page`;
  expect(await (await fetch(page)).text()).toBe("served\n");
  using again = await echoing();
  again.send(Buffer.from("again"));
  await again.until(() => again.received.includes("again"));
});

test("input that was acknowledged right before a kill is not lost", async () => {
  const process = await shell("cat > /root/more", { stdin_open: true });
  const sizes: number[] = [];
  for (let round = 0; round < 4; round++) {
    for (const size of [1, 3000, 20_000 + round]) {
      expect(await process.write("x".repeat(size))).toBe(204);
      sizes.push(size);
    }
    await replaceDaemon(appliance);
  }
  expect(await process.write("", { close: true })).toBe(204);
  expect((await process.ended()).exitCode).toBe(0);
  const sum = sizes.reduce((total, size) => total + size);
  expect((await sandbox.run("wc -c < /root/more")).output).toBe(`${sum}\n`);
});
