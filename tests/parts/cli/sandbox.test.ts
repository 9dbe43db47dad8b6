/** Commands about sandboxes, before an appliance that the test plays. */

import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { type CliOptions, cli, errorReply, ScriptedAppliance, type SeenRequest } from "../../support/cli/cli.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const IMAGE = "0197a1d0-5a5e-7000-8000-000000000003";
const OPERATION = "0197a1d0-5a5e-7000-8000-000000000004";
const DEV = "/sandboxes/name%3Adev";
const SANDBOX = {
  ...{ uuid: ID, name: "dev", image: IMAGE, head: IMAGE, state: "running", instance: OPERATION },
  ...{ created_at: "2026-11-20T10:30:00.000Z", state_changed_at: "2026-11-20T10:30:00.000Z", ends_at: null },
  ...{ idle_timeout: 1800, on_timeout: "pause", auto_resume: true, env_names: ["A"], cwd: "/work", user: "app" },
  ...{ network: null, resources: { vcpus: 1, memory_bytes: 1, disk_bytes: 1 }, metadata: {}, public_ports: [80] },
  urls: { pattern: `http://{port}-${ID}.localhost:8643/` },
};

let appliance: ScriptedAppliance;
/** the sandbox that exists; null: none */
let existing: object | null;
/** states of the sandbox at its next reads; the last one stays */
let states: string[];
/** processes of the sandbox */
let processes: object[];

beforeEach(() => {
  appliance = new ScriptedAppliance();
  existing = SANDBOX;
  states = ["running"];
  processes = [];
  appliance.answer = answer;
});
afterEach(() => appliance[Symbol.asyncDispose]());

function answer({ method, path: whole }: SeenRequest): Response | undefined {
  const path = whole.replace(/\?.*/, "");
  const now = () => Response.json({ ...existing, state: states.length > 1 ? states.shift() : states[0] });
  if (method === "POST" && path === "/sandboxes") {
    existing = SANDBOX;
    return Response.json({ ...SANDBOX, state: "starting" }, { status: 201 });
  }
  if (path === `/sandboxes/${ID}/processes` && method === "POST") return Response.json({ spid: 2 }, { status: 201 });
  if (path === `/sandboxes/${ID}/processes`) return Response.json(processes);
  if (method === "PUT" && path === `/sandboxes/${ID}/files`) return Response.json({ entry: { uid: 1000, gid: 1001 } });
  if (path.startsWith(`/sandboxes/${ID}/files`)) return Response.json({});
  if (path === "/images/import") return Response.json({ uuid: OPERATION }, { status: 202 });
  if (path === `/operations/${OPERATION}`) {
    return Response.json({ id: OPERATION, kind: "image_import", status: "SUCCESS", result: { image: IMAGE } });
  }
  if (path.endsWith("/fork")) return Response.json([SANDBOX, { ...SANDBOX, name: "dev-2" }], { status: 201 });
  if (path.endsWith("/links")) return Response.json({ url: "http://link/", expires_at: "2026-11-20T10:30:00.000Z" });
  if (path.endsWith("/states")) return Response.json(STATES);
  if (path === "/sandboxes") return Response.json([SANDBOX]);
  if (existing === null || !(path.startsWith(DEV) || path.startsWith(`/sandboxes/${ID}`))) return undefined;
  return now();
}

const STATES = [
  {
    seq: 2,
    image: IMAGE,
    parent: 1,
    reason: "pause",
    tags: ["x"],
    created_at: "2026-11-20T10:30:00.000Z",
    ref: "HEAD",
  },
  { seq: 1, image: ID, parent: null, reason: "start", tags: [], created_at: "2026-11-20T10:29:00.000Z", ref: null },
];

const coppice = (argv: readonly string[], options: CliOptions = {}) =>
  cli(argv, { ...options, environment: { ...appliance.environment, ...options.environment } });
const requests = () => appliance.seen.map(({ method, path }) => `${method} ${path}`);

describe("a command that changes the state", () => {
  test.each([
    [["pause", "dev"], "paused", `POST ${DEV}/pause?wait=30`],
    [["resume", ID], "running", `POST /sandboxes/${ID}/resume?wait=30`],
    [["down", "dev"], "ended", `DELETE ${DEV}?wait=30`],
    [["down", "dev", "--keep", "--tag", "x"], "ended", `DELETE ${DEV}?keep=true&tag=x&wait=30`],
    [["rollback", "dev"], "running", `POST ${DEV}/rollback?wait=30`],
  ] as const)("%j", async (argv, state, request) => {
    states = [state];
    const { code, stdout } = await coppice(argv);
    expect([code, stdout.toString(), requests()]).toEqual([0, `dev  ${state}\n`, [request]]);
  });

  test("waits while the state passes by itself", async () => {
    states = ["pausing", "pausing", "paused"];
    expect((await coppice(["pause", "dev"])).stdout.toString()).toBe("dev  paused\n");
    expect(requests()).toEqual([`POST ${DEV}/pause?wait=30`, `GET /sandboxes/${ID}`, `GET /sandboxes/${ID}`]);
  });

  test("reports that the sandbox failed, and why", async () => {
    states = ["failed"];
    existing = { ...SANDBOX, error: { error: "unavailable", message: "no\x1bmachine" } };
    const { code, stdout, stderr } = await coppice(["resume", "dev"]);
    expect([code, stdout.toString(), stderr]).toEqual([1, "", "coppice resume: dev failed: no\\033machine\n"]);
  });

  test("prints the sandbox as JSON, and forks as an array", async () => {
    states = ["paused"];
    expect(JSON.parse((await coppice(["pause", "dev", "--json"])).stdout.toString())).toMatchObject({
      state: "paused",
    });
    expect(JSON.parse((await coppice(["fork", "dev", "--json"])).stdout.toString())).toHaveLength(2);
  });

  test("reports the loser of a race", async () => {
    appliance.answer = () => errorReply(409, "conflict", "the sandbox is pausing");
    expect((await coppice(["resume", "dev"])).stderr).toBe("coppice resume: the sandbox is pausing (conflict)\n");
  });

  test("rollback takes a state or an image", async () => {
    for (const image of ["HEAD~2", "tag:release", IMAGE]) await coppice(["rollback", "dev", image, "--keep"]);
    expect(appliance.bodies("POST", `${DEV}/rollback?wait=30`)).toEqual([
      ...[
        { image: "HEAD~2", keep: true },
        { image: "tag:release", keep: true },
        { image: IMAGE, keep: true },
      ],
    ]);
    expect((await coppice(["rollback", "dev", "--tag", "x"])).code).toBe(2);
  });

  test("fork prints all new sandboxes", async () => {
    const { stdout } = await coppice(["fork", "dev", "-n", "2", "--name", "try"]);
    expect(stdout.toString()).toBe("dev  running\ndev-2  running\n");
    expect(appliance.bodies("POST", `${DEV}/fork?wait=30`)).toEqual([{ count: 2, name: "try" }]);
  });
});

test("url prints a link", async () => {
  expect((await coppice(["url", "dev", "8080", "--ttl", "8h"])).stdout.toString()).toBe("http://link/\n");
  expect(appliance.bodies("POST", `${DEV}/links`)).toEqual([{ port: 8080, ttl: 28_800 }]);
  for (const port of ["0", "65536", "http"]) expect((await coppice(["url", "dev", port])).code).toBe(2);
});

describe("sandbox", () => {
  test("ls reads all pages", async () => {
    appliance.answer = ({ path }) => {
      const headers: Record<string, string> = path.includes("cursor=c1") ? {} : { "x-next-cursor": "c1" };
      return Response.json([SANDBOX], { headers });
    };
    const { stdout } = await coppice(["sandbox", "ls", "--state", "running"]);
    expect(requests()).toEqual(["GET /sandboxes?state=running", "GET /sandboxes?state=running&cursor=c1"]);
    const row = `dev   running  -          ${ID}  ${IMAGE}\n`;
    expect(stdout.toString()).toBe(`NAME  STATE    TIME LEFT  UUID${" ".repeat(34)}HEAD\n${row}${row}`);
    expect((await coppice(["sandbox", "ls", "--state", "happy"])).code).toBe(2);
  });

  test("show has the fields that say something", async () => {
    const { stdout } = await coppice(["sandbox", "show", "dev"]);
    expect(stdout.toString().split("\n")).toEqual([
      ...["name          dev", "state         running", `uuid          ${ID}`, `image         ${IMAGE}`],
      ...[
        `head          ${IMAGE}`,
        "created       2026-11-20T10:30:00.000Z",
        "idle after    1800 s",
        "user          app",
      ],
      ...["directory     /work", "variables     A", "public ports  80", `address       ${SANDBOX.urls.pattern}`, ""],
    ]);
  });

  test("states lists what rollback takes", async () => {
    const { stdout } = await coppice(["sandbox", "states", "dev"]);
    const [header, first, second] = stdout.toString().split("\n");
    expect(header).toMatch(/^STATE +SAVED +WHY +IMAGE +TAGS$/);
    expect(first).toMatch(new RegExp(`^HEAD +2026-\\S+ +pause +${IMAGE} +tag:x$`));
    expect(second).toMatch(new RegExp(`^- +2026-\\S+ +start +${ID}$`));
  });
});

describe("up", () => {
  test("opens a sandbox from an image, with the settings of the options", async () => {
    existing = null;
    const options = [
      "--name",
      "dev",
      "--timeout",
      "8h",
      "--idle",
      "30m",
      "--user",
      "app",
      "--env",
      "A=b",
      "--public",
      "80",
    ];
    const { code, stdout } = await coppice(["up", "tag:python", ...options, "--memory", "1G", "--on-timeout", "end"]);
    expect([code, stdout.toString()]).toEqual([0, `dev  running\n${SANDBOX.urls.pattern}\n`]);
    expect(appliance.bodies("POST", "/sandboxes?wait=30")).toEqual([
      {
        ...{ image: "tag:python", name: "dev", timeout: 28_800, idle_timeout: 1800, on_timeout: "end", user: "app" },
        ...{ env: { A: "b" }, public_ports: [80], resources: { memory_bytes: 1024 ** 3 } },
      },
    ]);
  });

  test.each([
    ["paused", `POST /sandboxes/${ID}/resume?wait=30`],
    ["failed", `POST /sandboxes/${ID}/resume?wait=30`],
    ["running", null],
  ])("resumes the sandbox of that name which is %s", async (state, request) => {
    states = [state, "running"];
    const { code, stdout } = await coppice(["up", "tag:python", "--name", "dev"]);
    expect([code, stdout.toString().split("\n")[0]]).toEqual([0, "dev  running"]);
    expect(requests()).toEqual([`GET ${DEV}`, ...(request === null ? [] : [request])]);
  });

  test("changes what the options say about a sandbox that exists, and refuses what cannot change", async () => {
    const options = ["--timeout", "2h", "--network", "allow=a.example:443", "--public", "8080"];
    expect((await coppice(["up", "tag:x", "--name", "dev", ...options])).code).toBe(0);
    expect((await coppice(["up", "tag:x", "--name", "dev", "--network", "none"])).code).toBe(0);
    expect(appliance.bodies("PATCH", `/sandboxes/${ID}`)).toEqual([
      { timeout: 7200, network: { allow: [{ host: "a.example", ports: [443] }] }, public_ports: [8080] },
      { network: "none" },
    ]);
    const { code, stderr } = await coppice(["up", "tag:x", "--name", "dev", "--env", "A=b"]);
    expect([code, stderr.split("\n")[0]]).toEqual([2, "coppice up: --env is for a new sandbox, and dev exists"]);
  });

  test("imports an image of a registry once", async () => {
    existing = null;
    await coppice(["up", "registry.example/python:3"]);
    const tag = "registry.example/python:3";
    expect(appliance.bodies("POST", "/images/import")).toEqual([{ registry: tag, tag }]);
    expect(appliance.bodies("POST", "/sandboxes?wait=30")).toEqual([{ image: IMAGE }]);
    existing = null;
    const location = `/v1/inspect/${ID}/`;
    appliance.answer = (request) =>
      request.path.startsWith("/inspect/?tag=")
        ? new Response(null, { status: 302, headers: { location } })
        : answer(request);
    await coppice(["up", "registry.example/python:3"]);
    expect(appliance.bodies("POST", "/sandboxes?wait=30").at(-1)).toEqual({ image: ID });
    expect(appliance.bodies("POST", "/images/import")).toHaveLength(1);
  });

  test("without an image and a description says what is missing", async () => {
    using project = new ProjectDirectory({});
    const { code, stderr } = await coppice(["up", "--config", project.path("coppice.toml")]);
    expect([code, stderr]).toEqual([1, `coppice up: cannot read ${project.path("coppice.toml")}: ENOENT\n`]);
    using imageless = new ProjectDirectory({ "coppice.toml": "ports = [80]" });
    const file = imageless.path("coppice.toml");
    expect((await coppice(["up", "--config", file])).stderr).toStartWith(`coppice up: ${file} has no image; name it`);
  });
});

/** The files of a project, until disposal. */
class ProjectDirectory implements Disposable {
  readonly #directory = mkdtempSync(join(tmpdir(), "coppice-project-"));

  constructor(files: Readonly<Record<string, string>>) {
    for (const [name, text] of Object.entries(files)) {
      mkdirSync(dirname(this.path(name)), { recursive: true });
      writeFileSync(this.path(name), text);
    }
  }

  path(name: string): string {
    return join(this.#directory, name);
  }

  [Symbol.dispose](): void {
    rmSync(this.#directory, { recursive: true });
  }
}

describe("up with a devcontainer.json", () => {
  const CONFIG = ".devcontainer/devcontainer.json";
  const TEXT = `{ // a project
    "image": "tag:python", "remoteUser": "app", "workspaceFolder": "/code", "forwardPorts": [3000],
    "features": { "f": {} }, "postCreateCommand": { "a": "make", "b": ["npm", "ci"] }, "postStartCommand": "prepare",
    "postAttachCommand": ["serve"]
  }`;
  const up = (project: ProjectDirectory) => coppice(["up", "--config", project.path(CONFIG), "--name", "dev"]);
  const exits = (...codes: number[]) => {
    appliance.onSocket = (socket) => {
      socket.send(Buffer.from("\x01out\n", "latin1"));
      socket.send(Buffer.from(`\x03${JSON.stringify({ exit_code: codes.shift() ?? 0, signal: null })}`, "latin1"));
      socket.close(1000);
    };
  };
  const commands = () => appliance.bodies("POST", `/sandboxes/${ID}/processes`);

  test("makes the sandbox, copies the files, and runs the commands", async () => {
    existing = null;
    exits();
    using project = new ProjectDirectory({ [CONFIG]: TEXT, "src/a.py": "print()\n", "b.txt": "b" });
    symlinkSync("b.txt", project.path("link"));
    const { code, stdout, stderr } = await up(project);
    expect([code, stdout.toString()]).toEqual([0, `dev  running\nhttp://3000-${ID}.localhost:8643/\n`]);
    expect(stderr).toContain("coppice up: features are not installed");
    expect(stderr).toEndWith("coppice up: coppice url dev 3000 makes a link for a browser\n");
    expect(stderr).toContain("coppice up: postCreateCommand\nout\nout\ncoppice up: postStartCommand\nout\n");
    expect(stderr).toContain("postAttachCommand is process 2; coppice logs -f -p 2 dev shows its output\n");
    expect(appliance.bodies("POST", "/sandboxes?wait=30")).toEqual([
      { image: "tag:python", name: "dev", user: "app", cwd: "/code" },
    ]);
    // The commands of one object run at the same time.
    const [one, other, ...later] = commands();
    expect([one, other]).toContainEqual({ command: "make", shell: true });
    expect([one, other]).toContainEqual({ command: "npm", args: ["ci"] });
    expect(later).toEqual([
      { command: "prepare", shell: true },
      { command: "serve", args: [] },
    ]);
    // The directory belongs to the user, whose ids are those of a new file.
    const parent = `/sandboxes/${ID}/files`;
    expect(appliance.bodies("POST", `${parent}/directory`)).toEqual([{ path: "/code", user: "root" }]);
    expect(appliance.bodies("PATCH", `${parent}/attributes`)).toEqual([
      { path: "/code", user: "root", uid: 1000, gid: 1001 },
    ]);
    const written = appliance.seen
      .filter(({ method }) => method === "PUT")
      .map(({ path, body }) => [new URLSearchParams(path.split("?")[1]).get("path") ?? "", body.toString()] as const);
    expect(written.filter(([path]) => path.startsWith("/code/")).sort()).toEqual([
      ["/code/.devcontainer/devcontainer.json", TEXT],
      ["/code/b.txt", "b"],
      ["/code/src/a.py", "print()\n"],
    ]);
  });

  test("keeps the sandbox of a command that failed, and says which", async () => {
    existing = null;
    exits(0, 3);
    using project = new ProjectDirectory({ [CONFIG]: TEXT });
    const { code, stdout, stderr } = await up(project);
    expect([code, stdout.toString(), commands().length]).toEqual([1, "", 2]);
    expect(stderr).toEndWith(
      "postCreateCommand ended with exit code 3; sandbox dev is kept as it is; it has no network, which --network gives to a new one\n",
    );
  });

  test("resumes the sandbox that exists, and runs only the commands of a start", async () => {
    states = ["paused", "running"];
    exits();
    using project = new ProjectDirectory({ [CONFIG]: TEXT });
    expect((await up(project)).code).toBe(0);
    expect(commands()).toEqual([
      { command: "prepare", shell: true },
      { command: "serve", args: [] },
    ]);
    expect(requests().filter((request) => request.startsWith("PUT"))).toEqual([]);
  });

  test("starts the servers of a sandbox whose machine is new, such as after a rollback, and no second ones", async () => {
    exits();
    using project = new ProjectDirectory({ [CONFIG]: TEXT });
    processes = [{ spid: 2, state: "ended" }];
    expect((await up(project)).code).toBe(0);
    expect(commands()).toHaveLength(2);
    processes.push({ spid: 3, state: "running" });
    expect((await up(project)).code).toBe(0);
    expect(commands()).toHaveLength(2);
  });

  test("takes the image of the command line first", async () => {
    existing = null;
    exits();
    using project = new ProjectDirectory({ [CONFIG]: TEXT });
    await coppice(["up", "tag:other", "--config", project.path(CONFIG), "--no-copy", "--env", "A=b"]);
    expect(appliance.bodies("POST", "/sandboxes?wait=30")).toMatchObject([{ image: "tag:other", env: { A: "b" } }]);
    expect(requests().filter((request) => /^PUT .*code/.test(request))).toEqual([]);
    expect(appliance.bodies("POST", `/sandboxes/${ID}/files/directory`)).toMatchObject([{ path: "/code" }]);
  });
});
