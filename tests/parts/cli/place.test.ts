/** Commands for a running instance that take a sandbox in its place. */

import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { type CliOptions, cli, ScriptedAppliance, type SeenRequest } from "../../support/cli/cli.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const OPERATION = "0197a1d0-5a5e-7000-8000-000000000002";
const IMAGE = "0197a1d0-5a5e-7000-8000-000000000003";
const DEV = "/sandboxes/name%3Adev";
const EVENTS = [
  { id: 0, type: "state", spid: 0, data: { from: null, to: "starting" } },
  { id: 1, type: "stdout", spid: 2, data: { content: "two\n", encoding: "ascii" } },
  { id: 2, type: "stdout", spid: 3, data: { content: "three\n", encoding: "ascii" } },
  { id: 3, type: "state", spid: 0, data: { from: "running", to: "ended" } },
];

let appliance: ScriptedAppliance;
/** path of the sandbox that exists */
let place: string;

beforeEach(() => {
  appliance = new ScriptedAppliance();
  place = DEV;
  appliance.answer = answer;
});
afterEach(() => appliance[Symbol.asyncDispose]());

function answer({ method, path }: SeenRequest): Response | undefined {
  if (method === "POST" && path === `${place}/processes`) return Response.json({ spid: 2, pid: 9 }, { status: 201 });
  if (method === "POST" && path === `${place}/checkpoint`) return Response.json({ uuid: OPERATION }, { status: 202 });
  if (path.startsWith(`/operations/${OPERATION}?`)) {
    const result = { image: IMAGE, size_bytes: 1024, pause_ms: 3 };
    return Response.json({ id: OPERATION, kind: "checkpoint", status: "SUCCESS", result });
  }
  // The name could be that of another sandbox by now.
  const eventsOf = [place, `/sandboxes/${ID}`].find((each) => path.startsWith(`${each}/events`));
  if (eventsOf !== undefined) return sent(EVENTS.filter(({ spid }) => isAbout(path, spid)));
  if (path === `${place}/processes/2`) return Response.json({ spid: 2, stdout: { content: "", encoding: "ascii" } });
  return path === place ? Response.json({ uuid: ID, name: "dev", state: "running", head: IMAGE }) : undefined;
}

function isAbout(path: string, spid: number): boolean {
  const wish = new URLSearchParams(path.split("?")[1]).get("spid");
  return wish === null || Number(wish) === spid;
}

function sent(events: readonly { readonly id: number }[]): Response {
  const text = events.map((event) => `id: ${event.id}\ndata: ${JSON.stringify(event)}\n\n`).join("");
  return new Response(text, { headers: { "content-type": "text/event-stream" } });
}

const coppice = (argv: readonly string[], options: CliOptions = {}) =>
  cli(argv, { environment: appliance.environment, ...options });
const paths = () => appliance.seen.map(({ method, path }) => `${method} ${path.split("?")[0]}`);

/** Lets the next attachment end with an exit code. */
function ends(exitCode: number): void {
  appliance.onSocket = (socket) => {
    socket.send(Buffer.from(`\x03${JSON.stringify({ exit_code: exitCode, signal: null })}`, "latin1"));
    socket.close(1000);
  };
}

describe("exec", () => {
  test.each([["dev"], ["name:dev"]])("starts a process in the sandbox %s", async (name) => {
    ends(4);
    expect((await coppice(["exec", name, "--", "true"])).code).toBe(4);
    expect(paths()).toEqual([`POST ${DEV}/processes`, `GET ${DEV}/processes/2/attach`]);
  });

  test("runs as a user by name", async () => {
    await coppice(["exec", "-d", "--user", "app", "dev", "--", "id"]);
    expect(appliance.bodies("POST", `${DEV}/processes`)).toMatchObject([{ command: "id", user: "app" }]);
  });

  test("finds the sandbox with a UUID when there is no such instance", async () => {
    place = `/sandboxes/${ID}`;
    expect((await coppice(["exec", "-d", ID, "--", "true"])).stdout.toString()).toBe("2\n");
    expect(paths()).toEqual([
      ...[`POST /instances/${ID}/processes`, `GET /sandboxes/${ID}`, `POST /sandboxes/${ID}/processes`],
    ]);
  });

  test("says that there is no such instance when there is no such sandbox either", async () => {
    const { code, stderr } = await coppice(["exec", ID, "--", "true"]);
    expect([code, stderr]).toEqual([125, expect.stringContaining(`no POST /instances/${ID}/processes`)]);
  });
});

test("attach joins a process of a sandbox, which has no command", async () => {
  ends(0);
  expect((await coppice(["attach", "dev", "2"])).code).toBe(0);
  const { code, stderr } = await coppice(["attach", "dev"]);
  expect([code, stderr]).toEqual([...[125, "coppice attach: a sandbox has no command: coppice attach dev SPID\n"]]);
});

test("logs shows the output of all processes of a sandbox, or of one", async () => {
  expect((await coppice(["logs", "dev"])).stdout.toString()).toBe("two\nthree\n");
  expect((await coppice(["logs", "-p", "3", "dev"])).stdout.toString()).toBe("three\n");
  const lines = (await coppice(["logs", "--json", "-f", "dev"])).stdout.toString().trimEnd().split("\n");
  expect(lines.map((line) => JSON.parse(line))).toEqual(EVENTS);
  const { code, stderr } = await coppice(["logs", "-p", "9", "dev"]);
  expect([code, stderr]).toEqual([1, "coppice logs: dev has no process 9\n"]);
});

test("checkpoint saves the files of a sandbox", async () => {
  const { code, stdout } = await coppice(["checkpoint", "dev", "--tag", "x"]);
  expect([code, stdout.toString()]).toEqual([0, `${IMAGE}\n`]);
  expect(appliance.bodies("POST", `${DEV}/checkpoint`)).toEqual([{ tag: "x" }]);
});

test("forward listens until the end of the sandbox that had the name", async () => {
  const { code, stdout, stderr } = await coppice(["forward", "dev", "0:80"]);
  expect([code, stderr]).toEqual([0, "coppice forward: sandbox dev has ended\n"]);
  expect(stdout.toString()).toMatch(/^127\.0\.0\.1:\d+ -> 80\n$/);
  expect(paths()).toEqual([`GET ${DEV}`, `GET /sandboxes/${ID}/events`]);
});

describe("shell", () => {
  const keys = { size: () => ({ rows: 5, cols: 9 }), raw: () => ({ [Symbol.dispose]: () => undefined }) };
  const shell = (...argv: string[]) => coppice(["shell", ...argv], { keys });

  test("starts in a sandbox as a process with a terminal", async () => {
    ends(3);
    appliance.answer = (request) => (request.path.includes("path=%2Fbin%2Fsh") ? new Response(null) : answer(request));
    expect((await shell("dev", "--env", "A=b")).code).toBe(3);
    expect(appliance.bodies("POST", `${DEV}/processes`)).toEqual([
      { command: "/bin/sh", env: { TERM: "xterm", A: "b" }, pty: { rows: 5, cols: 9 }, stdin_open: true },
    ]);
  });

  test("refuses options about a new sandbox", async () => {
    const { code, stderr } = await shell("dev", "--memory", "1G");
    expect([code, stderr.split("\n")[0]]).toEqual([
      ...[2, "coppice shell: --memory is for a new sandbox, and this one exists"],
    ]);
  });
});

test("an option after the name, and a text that names no image or sandbox, are refused with the right form", async () => {
  const said = async (...argv: string[]) => (await coppice(argv)).stderr.split("\n")[0];
  expect(await said("exec", "dev", "--cwd", "/srv", "--", "ls")).toBe(
    "coppice exec: options come before dev: coppice exec --cwd ... dev -- COMMAND",
  );
  expect(await said("ls", "dev", "/srv")).toBe(
    'coppice ls: "dev" names no image: write tag:dev, or dev:/srv for files of a sandbox',
  );
  expect(await said("pause", "Dev")).toBe(
    'coppice pause: "Dev" is not the name of a sandbox: up to 40 lower-case letters, digits and hyphens',
  );
  expect(appliance.seen).toEqual([]);
});
