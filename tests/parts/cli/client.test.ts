import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { outputObject } from "../../../src/api/v1/schema/operations.ts";
import { OUTPUT_BYTES_MAX } from "../../../src/domain/output.ts";
import { type CliOptions, type CliResult, cli, errorReply, ScriptedAppliance } from "../../support/cli/cli.ts";
import { freePort } from "../../support/free-port.ts";
import { pause } from "../../support/waiting.ts";

const ID = "0197a1d0-5a5e-7000-8000-3c6e0b8a9c15";
const IMAGE = "0197a1d0-5a5e-7000-8000-000000000001";

let appliance: ScriptedAppliance;
let directory: string;

beforeEach(() => {
  appliance = new ScriptedAppliance();
  directory = mkdtempSync(join(tmpdir(), "coppice-cli-"));
});
afterEach(async () => {
  await appliance[Symbol.asyncDispose]();
  rmSync(directory, { recursive: true });
});

const coppice = (argv: readonly string[], options: CliOptions = {}): Promise<CliResult> =>
  cli(argv, { environment: appliance.environment, ...options });

const operation = (fields: object) =>
  Response.json({ id: ID, kind: "instance", created_at: "2026-11-20T10:30:00.000Z", ...fields });

interface Outcome {
  readonly exit_code?: number;
  readonly stdout?: Uint8Array;
  readonly stderr?: Uint8Array;
  readonly truncated?: boolean;
  readonly timed_out?: boolean;
  readonly oom_killed?: boolean;
}

/** An appliance on which a run ends with this result. */
function runs(outcome: Outcome): void {
  const { stdout = new Uint8Array(0), stderr = new Uint8Array(0), truncated = false, ...rest } = outcome;
  appliance.answer = ({ method, path }) => {
    if (path === "/files") return Response.json({ uuid: `file-${appliance.seen.length}`, sha256: "" }, { status: 201 });
    if (path === "/instances") return Response.json({ uuid: ID }, { status: 201 });
    if (method === "PATCH") return Response.json({ uuid: IMAGE, created_at: "" });
    if (!path.startsWith(`/operations/${ID}`)) return undefined;
    const result = {
      exit_code: 0,
      cpu_time_ms: 1,
      memory_bytes: 1,
      timed_out: false,
      isolation: "vm",
      image: IMAGE,
      ...rest,
      stdout: outputObject(stdout, truncated),
      stderr: outputObject(stderr, false),
    };
    return operation({ status: "SUCCESS", result });
  };
}

describe("run", () => {
  test("output is passed on byte by byte, and the exit code too", async () => {
    const stdout = new Uint8Array(256).map((_, index) => index);
    runs({ exit_code: 42, stdout, stderr: Buffer.from("warn\n") });
    const { code, ...out } = await coppice(["run", "--image", "tag:x", "--", "job"]);
    expect(code).toBe(42);
    expect(out.stdout.equals(stdout)).toBe(true);
    expect(out.stderr).toBe("warn\n");
  });

  test("every option reaches the request", async () => {
    runs({});
    const local = join(directory, "a:b.sh");
    writeFileSync(local, "content", { mode: 0o750 });
    const argv = [
      ...["run", "--image", "tag:x", "--env", "A=1=2", "--env", "HOME", "--env", "EMPTY="],
      ...["--file", `${local}:/srv/b.sh`, "--cwd", "/srv", "--hostname", "box", "--timeout", "9"],
      ...["--cpus", "2", "--memory", "512M", "--disk", "1.5GiB", "--output-limit", "0"],
      ...["--disposable", "--", "sh", "-c", "echo $1"],
    ];
    expect((await coppice(argv)).code).toBe(0);
    expect(appliance.bodies("POST", "/instances")).toEqual([
      {
        image: "tag:x",
        command: "sh",
        args: ["-c", "echo $1"],
        env: { A: "1=2", HOME: "/nonexistent", EMPTY: "" },
        files: { "/srv/b.sh": { uuid: "file-2", mode: "0750" } },
        ...{ cwd: "/srv", hostname: "box", timeout: 9 },
        resources: { vcpus: 2, memory_bytes: 536_870_912, disk_bytes: 1_610_612_736 },
        disposable: true,
        truncate_output_at: 0,
      },
    ]);
    const sha256 = new Bun.CryptoHasher("sha256").update("content").digest("hex");
    expect(appliance.seen[0]).toMatchObject({ method: "GET", path: `/files?sha256=${sha256}` });
    expect(appliance.seen[1]).toMatchObject({ method: "POST", path: "/files", body: Buffer.from("content") });
    expect(new Set(appliance.seen.map(({ authorization }) => authorization))).toEqual(new Set(["Bearer t"]));
  });

  test("the command begins at the first word that is not an option, with or without --", async () => {
    runs({});
    for (const dashes of [[], ["--"]]) {
      const argv = ["run", "--image", "tag:x", "--env", "A=1", ...dashes, "ls", "-la", "--image", "y", "--help"];
      expect((await coppice(argv)).code).toBe(0);
    }
    const sent = { image: "tag:x", command: "ls", args: ["-la", "--image", "y", "--help"] };
    const request = expect.objectContaining({ ...sent, truncate_output_at: OUTPUT_BYTES_MAX });
    expect(appliance.bodies("POST", "/instances")).toEqual([request, request]);
  });

  test.each([
    ["text", Buffer.from("plain\n"), "plain\n"],
    ["bytes", Buffer.from([0xff, 0x00]), "base64:/wA="],
    ["text that looks encoded", Buffer.from("base64:eA=="), "base64:YmFzZTY0OmVBPT0="],
    ["nothing", Buffer.alloc(0), ""],
  ])("standard input: %s", async (_, stdin, sent) => {
    runs({});
    await coppice(["run", "--image", "tag:x", "--stdin", "-", "--", "cat"], { stdin });
    expect(appliance.bodies("POST", "/instances")).toEqual([expect.objectContaining({ stdin: sent })]);
  });

  test("a truncated output or run is reported after the output", async () => {
    runs({ exit_code: 137, stdout: Buffer.from("partial"), truncated: true, timed_out: true, oom_killed: true });
    const { code, stdout, stderr } = await coppice(["run", "--image", "tag:x", "--", "job"]);
    expect([code, stdout.toString()]).toEqual([137, "partial"]);
    expect(stderr).toMatch(/stdout was cut at 10485760 bytes\n.*time limit.*\n.*out of memory/);
  });

  test("--tag is part of the request, also of a run that is left; --json prints the operation", async () => {
    runs({ exit_code: 3 });
    const { code, stdout } = await coppice(["run", "--image", IMAGE, "--tag", "after", "--json", "--", "job"]);
    expect(code).toBe(3);
    expect(JSON.parse(stdout.toString())).toMatchObject({ id: ID, result: { exit_code: 3 } });
    await coppice(["run", "--image", IMAGE, "--tag", "after", "-d", "--", "job"]);
    expect(appliance.bodies("POST", "/instances")).toMatchObject([{ tag: "after" }, { tag: "after" }]);
  });

  test("a run that the appliance could not execute has an exit code of its own", async () => {
    const error = { error: "unavailable", message: "the guest died", details: {} };
    appliance.answer = ({ path }) =>
      path === "/instances" ? Response.json({ uuid: ID }, { status: 201 }) : operation({ status: "FAILED", error });
    const { code, stderr } = await coppice(["run", "--image", "tag:x", "--", "job"]);
    expect(code).toBe(125);
    expect(stderr).toContain("the guest died");
  });

  test("Ctrl-C cancels and waits for the end; a second one does not wait", async () => {
    for (const second of [false, true]) {
      let cancelled = false;
      const pressed = Promise.withResolvers<(signal: "SIGINT") => void>();
      appliance.answer = async ({ method, path }) => {
        if (path === "/instances") return Response.json({ uuid: ID }, { status: 201 });
        if (method === "DELETE") {
          cancelled = true;
          if (second) (await pressed.promise)("SIGINT");
          return operation({ status: "EXECUTING" });
        }
        if (cancelled && !second) return operation({ status: "CANCELLED" });
        if (!cancelled) (await pressed.promise)("SIGINT");
        await pause("an appliance answers later", 5);
        return operation({ status: "EXECUTING" });
      };
      const { code, stderr } = await coppice(["run", "--image", "tag:x", "--", "job"], { interrupts: pressed.resolve });
      expect([code, cancelled]).toEqual([130, true]);
      expect(stderr).toContain(second ? "gave up waiting" : "was cancelled");
    }
  });

  test("a terminal shows that a run waits for its turn, and polls often for it", async () => {
    runs({});
    const answer = appliance.answer;
    let polls = 0;
    appliance.answer = async (request) => {
      if (!request.path.startsWith(`/operations/${ID}`)) return await answer(request);
      polls += 1;
      await pause("longer than a terminal sees nothing", 150);
      return polls > 2 ? await answer(request) : operation({ status: polls === 1 ? "PENDING" : "EXECUTING" });
    };
    const { stderr } = await coppice(["run", "--image", "tag:x", "--", "job"], { terminal: true });
    expect(stderr).toContain("running, waiting for its turn (");
    const asked = appliance.seen.flatMap(({ path }) => /wait=\d+/.exec(path) ?? []);
    expect(asked).toEqual(["wait=1", "wait=1", "wait=25"]);
  });

  test("progress is shown on a terminal, and not in a file", async () => {
    runs({ stdout: Buffer.from("out") });
    const answer = appliance.answer;
    appliance.answer = async (request) => {
      await pause("longer than a terminal sees nothing", 150);
      return await answer(request);
    };
    const argv = ["run", "--image", "tag:x", "--", "job"];
    expect((await coppice(argv, { terminal: true })).stderr).toContain("running");
    expect((await coppice(argv)).stderr).toBe("");
    const environment = { ...appliance.environment, TERM: "dumb" };
    expect((await coppice(argv, { terminal: true, environment })).stderr).toBe("");
  });

  test.each([
    [["run", "--", "true"], "--image is missing"],
    [["run", "--image", "tag:x"], "the command is missing"],
    [["run", "--image", "tag:x", "--env", "UNSET_HERE", "--", "true"], "there is no such variable"],
    [["run", "--image", "tag:x", "--memory", "lots", "--", "true"], "--memory must be a size such as 512M"],
    [["run", "--image", "tag:x", "--timeout", "soon", "--", "true"], "--timeout must be a duration"],
    [["run", "--image", "tag:x", "--file", "a", "--", "true"], "must be LOCAL:/ABSOLUTE/PATH"],
    [["run", "--image", "tag:x", "--disposable", "--tag", "t", "--", "true"], "leaves no image"],
    [["run", "--image", "tag:x", "--tag", "a b", "--", "true"], "not a tag name"],
  ])("%j is a wrong usage", async (argv, message) => {
    const { code, stdout, stderr } = await coppice(argv);
    expect([code, stdout.length]).toEqual([2, 0]);
    expect(stderr).toContain(message);
    expect(appliance.seen).toEqual([]);
  });
});

describe("failures", () => {
  test("there is no listener", async () => {
    const url = `http://127.0.0.1:${await freePort()}`;
    const environment = { COPPICE_URL: url, HOME: directory };
    const { code, stderr } = await cli(["image", "ls"], { environment });
    expect(code).toBe(1);
    expect(stderr).toContain(`cannot reach an appliance at ${url}`);
  });

  test("no token: says how to get one", async () => {
    appliance.answer = () => errorReply(401, "unauthorized", "missing bearer token");
    const environment = { ...appliance.environment, COPPICE_TOKEN: undefined, HOME: directory };
    expect((await cli(["image", "ls"], { environment })).stderr).toContain("coppice token create");
    expect((await coppice(["image", "ls"])).stderr).toContain("The token is from COPPICE_TOKEN");
  });

  test("another server answers", async () => {
    appliance.answer = () => new Response("<html>Bad gateway", { status: 502 });
    const { code, stderr } = await coppice(["op", "show", ID]);
    expect(code).toBe(1);
    expect(stderr).toContain("HTTP status 502");
  });

  test.each<[string[], [number, string, string], number]>([
    [["image", "show", "x"], [400, "validation_error", "no uuid"], 2],
    [["cat", ID, "x"], [422, "invalid_path", "not absolute"], 2],
    [["image", "show", ID], [404, "not_found", "no such image"], 1],
    [["run", "--image", ID, "true"], [400, "validation_error", "too long"], 2],
    [["run", "--image", ID, "true"], [404, "not_found", "no such image"], 125],
    [["run", "--image", ID, "true"], [401, "unauthorized", "who are you"], 125],
  ])("%j: the exit code tells a wrong request from a refused one", async (argv, answer, expected) => {
    appliance.answer = () => errorReply(...answer);
    const { code, stdout } = await coppice(argv);
    expect([code, stdout.length]).toEqual([expected, 0]);
  });

  test("a run without an answer is not taken for a failed one", async () => {
    const argv = ["run", "--url", `http://127.0.0.1:${await freePort()}`, "--image", "tag:x", "true"];
    expect(await coppice(argv)).toMatchObject({ code: 125, stderr: expect.stringContaining("cannot reach") });
  });

  test("an invalid address is blamed on its flag", async () => {
    const { code, stderr } = await coppice(["image", "ls", "--url", "ftp://x"]);
    expect([code, stderr]).toEqual([2, expect.stringContaining('--url: must be an http or https address, not "ftp')]);
  });

  test("the command waits for an appliance that restarts", async () => {
    let calls = 0;
    runs({ exit_code: 7 });
    const answer = appliance.answer;
    appliance.answer = (request) => {
      calls += 1;
      if (calls === 2) return errorReply(503, "unavailable", "starting");
      return answer(request);
    };
    expect((await coppice(["run", "--image", "tag:x", "--", "job"])).code).toBe(7);
  });
});

describe("images", () => {
  test("import waits and prints the uuid; a password comes from standard input", async () => {
    appliance.answer = ({ path }) =>
      path === "/images/import"
        ? Response.json({ uuid: ID }, { status: 202 })
        : operation({
            status: "SUCCESS",
            duration_ms: 1500,
            result: { image: IMAGE, digest: "sha256:0", size_bytes: 2_097_152 },
          });
    const argv = ["image", "import", "r:5000/a:1", "--tag", "a", "--username", "u", "--timeout", "60"];
    const { code, stdout, stderr } = await coppice(argv, { stdin: Buffer.from("hidden\n") });
    expect([code, stdout.toString()]).toEqual([0, `${IMAGE}\n`]);
    expect(stderr).toBe("imported r:5000/a:1: 2.0 MiB in 1.5 s\n");
    expect(appliance.bodies("POST", "/images/import")).toEqual([
      { registry: "r:5000/a:1", tag: "a", timeout: 60, credentials: { username: "u", password: "hidden" } },
    ]);
  });

  test("ls passes its options on and prints a table", async () => {
    appliance.answer = () => Response.json([{ uuid: IMAGE, created_at: "2026-11-20T10:30:00.000Z", tag: "a\x1b[2J" }]);
    const { stdout } = await coppice(["image", "ls", "--prefix", "a", "--untagged", "--limit", "5"]);
    expect(appliance.seen[0]?.path).toBe("/images?tag=a&tagged=false&limit=5");
    expect(stdout.toString().split("\n")[1]).toBe(`${IMAGE}  2026-11-20T10:30:00.000Z  a\\033[2J`);
  });

  test("rm continues after an image that it cannot delete, and reports it", async () => {
    appliance.answer = ({ path }) =>
      path === `/images/${ID}` ? errorReply(409, "conflict", "in use") : new Response(null, { status: 204 });
    const { code, stdout, stderr } = await coppice(["image", "rm", ID, IMAGE, "--json"]);
    expect([code, JSON.parse(stdout.toString())]).toEqual([1, [IMAGE]]);
    expect(stderr).toBe(`coppice image rm: ${ID}: in use (conflict)\n`);
  });

  test("tag and untag find an image by its tag", async () => {
    appliance.answer = ({ path }) =>
      path === "/inspect/?tag=a"
        ? new Response(null, { status: 302, headers: { location: `/v1/inspect/${IMAGE}/` } })
        : Response.json({ uuid: IMAGE, created_at: "" });
    expect((await coppice(["image", "tag", "tag:a", "b"])).code).toBe(0);
    expect((await coppice(["image", "untag", "tag:a"])).code).toBe(0);
    const calls = appliance.seen.map(({ method, path }) => `${method} ${path}`);
    expect(calls).toEqual([
      "GET /inspect/?tag=a",
      `PATCH /images/${IMAGE}/tag`,
      "GET /inspect/?tag=a",
      `DELETE /images/${IMAGE}/tag`,
    ]);
  });
});

describe("inside an image", () => {
  test("ls and cat print the answer unchanged", async () => {
    appliance.answer = ({ path }) => new Response(path.includes("/list") ? "0644 a\n" : Buffer.from([0, 255]));
    expect((await coppice(["ls", IMAGE, "/a b"])).stdout.toString()).toBe("0644 a\n");
    expect((await coppice(["cat", IMAGE, "/a"])).stdout.equals(Buffer.from([0, 255]))).toBe(true);
    expect(appliance.seen[0]?.path).toBe(`/inspect/${IMAGE}/list?path=%2Fa+b&text=true`);
  });
});

describe("operations", () => {
  test("ls shows how each operation ended", async () => {
    const base = { id: ID, created_at: "2026-11-20T10:30:00.000Z" };
    appliance.answer = () =>
      Response.json([
        { ...base, kind: "instance", status: "SUCCESS", duration_ms: 12, result: { exit_code: 3 } },
        {
          ...base,
          id: IMAGE,
          kind: "image_import",
          status: "FAILED",
          error: { error: "unavailable", message: "down" },
        },
      ]);
    const { stdout } = await coppice(["op", "ls", "--status", "FAILED", "--since", "2h"]);
    expect(appliance.seen[0]?.path).toBe("/operations?status=FAILED&since=2h&limit=100");
    expect(stdout.toString()).toMatch(/12 ms\s+exit 3\n.*FAILED.*unavailable: down\n$/);
  });

  test("show prints one field a line; --json prints all of them", async () => {
    const result = { exit_code: 137, cpu_time_ms: 1500, memory_bytes: 2_097_152, timed_out: true, isolation: "vm" };
    appliance.answer = () => operation({ status: "SUCCESS", duration_ms: 12, result });
    const { stdout } = await coppice(["op", "show", ID]);
    expect(stdout.toString().split("\n")).toEqual([
      `ID         ${ID}`,
      "KIND       instance",
      "STATUS     SUCCESS",
      "CREATED    2026-11-20T10:30:00.000Z",
      "TOOK       12 ms",
      "EXIT CODE  137 (timed out)",
      "CPU TIME   1.5 s",
      "MEMORY     2.0 MiB",
      "ISOLATION  vm",
      "",
    ]);
    expect(JSON.parse((await coppice(["op", "show", ID, "--json"])).stdout.toString())).toMatchObject({ result });
  });

  test.each([
    ["SUCCESS", 0],
    ["FAILED", 1],
    ["CANCELLED", 1],
  ])("wait for one that ends %s exits %i", async (status, code) => {
    appliance.answer = () => operation({ status });
    expect(await coppice(["op", "wait", ID])).toMatchObject({ code, stdout: Buffer.from(`${status}\n`) });
  });

  test("Ctrl-C ends the wait, not the operation", async () => {
    const pressed = Promise.withResolvers<(signal: "SIGINT") => void>();
    appliance.answer = async () => {
      (await pressed.promise)("SIGINT");
      return operation({ status: "EXECUTING" });
    };
    expect((await coppice(["op", "wait", ID], { interrupts: pressed.resolve })).code).toBe(130);
    expect(appliance.seen.map(({ method }) => method)).not.toContain("DELETE");
  });

  test("cancelling an operation that has ended is a conflict", async () => {
    appliance.answer = () => errorReply(409, "conflict", "the operation has ended");
    expect(await coppice(["op", "cancel", ID])).toMatchObject({ code: 1, stderr: expect.stringContaining("conflict") });
  });
});
