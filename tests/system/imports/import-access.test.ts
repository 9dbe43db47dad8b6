import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { Appliance, processesWith } from "../../support/appliance/appliance.ts";
import { type ImageSpec, pushImage } from "../../support/images/images.ts";
import { bystander, type RedirectingRegistry, redirectingRegistry } from "../../support/images/redirecting-registry.ts";
import { Registry } from "../../support/images/registry.ts";
import { type SlowRegistry, slowRegistry } from "../../support/images/slow-registry.ts";
import { type Body, operationOf } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(120_000);

const PASSWORD = "hunter2-canary-p4ss";
const CREDENTIALS = { username: "alice", password: PASSWORD };
const IMAGE: ImageSpec = { layers: [[{ path: "marker", content: "m" }]] };

let open: Registry;
let closed: Registry;
let secured: Registry;
let slow: SlowRegistry;
let redirecting: RedirectingRegistry;
let appliance: Appliance;

/** vCPUs, all of which one run can have */
const CPU_BUDGET = 4;

beforeAll(async () => {
  [open, closed, secured] = await Promise.all([
    Registry.start(),
    Registry.start({ credentials: CREDENTIALS }),
    Registry.start({ credentials: CREDENTIALS, tls: true }),
  ]);
  slow = slowRegistry(open.host);
  redirecting = redirectingRegistry(open);
  appliance = await Appliance.start({
    registries: [
      open.host,
      closed.host,
      slow.host,
      redirecting.host,
      { host: secured.host, ca_file: secured.caFile ?? "" },
      { host: "denied.example", allow: false },
      // Listed, but accessed with TLS and the system's authorities.
      { host: open.host.replace("127.0.0.1", "localhost") },
      { host: secured.host.replace("127.0.0.1", "localhost") },
    ],
    poolSize: 1,
    flags: ["--vm-cpu-budget", String(CPU_BUDGET)],
  });
  await Promise.all([open, closed, secured].map((registry) => pushImage(registry, "team/app:1", IMAGE)));
});

afterAll(async () => {
  for (const owned of [appliance, slow, redirecting, open, closed, secured]) await owned[Symbol.asyncDispose]();
});

interface Ended extends Body {
  readonly status: string;
  readonly error: Body & { readonly details: Body };
}
const ended = async (registryReference: string, more: Body = {}) =>
  (await appliance.finished(await appliance.submitImport(registryReference, more))) as unknown as Ended;
const app = (registry: { readonly host: string }) => `${registry.host}/team/app:1`;

/** Command lines and environments with the password, sampled every millisecond. */
function watchProcesses(): { stop(): { seen: string[]; commands: number } } {
  const seen = new Set<string>();
  const commands = new Set<string>();
  const timer = setInterval(() => {
    for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)) {
      try {
        const command = readFileSync(`/proc/${pid}/cmdline`, "latin1");
        if (command.includes("skopeo")) commands.add(command);
        if (command.includes(PASSWORD)) seen.add(command);
        if (!/^(skopeo|umoci)/.test(command)) continue;
        if (readFileSync(`/proc/${pid}/environ`, "latin1").includes(PASSWORD)) seen.add(`environment of ${command}`);
      } catch (error) {
        // The process has ended, or hides its environment while it executes another program.
        expect(["ENOENT", "ESRCH", "EACCES"]).toContain((error as NodeJS.ErrnoException).code ?? "");
      }
    }
  }, 1);
  return {
    stop: () => {
      clearInterval(timer);
      return { seen: [...seen], commands: commands.size };
    },
  };
}

/** Files of the data directory with the password, as text or as registries receive it. */
async function filesWithPassword(): Promise<string> {
  const forms = [PASSWORD, btoa(`alice:${PASSWORD}`)].flatMap((form) => ["-e", form]);
  const argv = ["grep", "-rlF", "--exclude-dir=scratch", ...forms, appliance.dataDir];
  return await new Response(Bun.spawn(argv, { timeout: 30_000 }).stdout).text();
}

describe("POST /images/import credentials", () => {
  // spec: images.import.credentials
  test("open a private registry, and the password is in no command line, log, row, file or response", async () => {
    const watch = watchProcesses();
    const ids = await Promise.all([
      appliance.submitImport(app(closed), { credentials: CREDENTIALS, tag: "private" }),
      appliance.submitImport(app(secured), { credentials: CREDENTIALS }),
      appliance.submitImport(app(secured), { credentials: { username: "mallory", password: PASSWORD } }),
    ]);
    const answers = [];
    for (const id of ids) answers.push(await appliance.finished(id));
    const { seen, commands } = watch.stop();
    expect(answers.map(({ status }) => status)).toEqual(["SUCCESS", "SUCCESS", "FAILED"]);
    expect(commands).toBeGreaterThan(0);
    expect(seen).toEqual([]);
    const responses = await Promise.all(
      ["/operations", "/images", ...ids.map((id) => `/operations/${id}`)].map(
        async (path) => await (await appliance.fetch(path)).text(),
      ),
    );
    expect(responses.join("")).not.toContain(PASSWORD);
    expect(appliance.log).not.toContain(PASSWORD);
    expect(await filesWithPassword()).toBe("");
  });

  test("that are missing or wrong end FAILED forbidden, with a message that says which", async () => {
    const missing = await ended(app(secured));
    expect(missing).toMatchObject({ status: "FAILED", error: { error: "forbidden" } });
    expect(missing.error["message"]).toContain("requires credentials");
    const wrong = await ended(app(secured), { credentials: { username: "alice", password: "wr0ng-canary" } });
    expect(wrong).toMatchObject({ status: "FAILED", error: { error: "forbidden" } });
    expect(wrong.error["message"]).toContain("does not accept");
    expect(JSON.stringify(wrong)).not.toContain("wr0ng-canary");
  });

  test("a digest that the appliance has is still requested from the registry: one account's credentials give another no access", async () => {
    const token = await appliance.createToken("stranger");
    const headers = { "content-type": "application/json" };
    const body = JSON.stringify({ registry: app(closed) });
    const response = await appliance.fetch("/images/import", { method: "POST", headers, body, token });
    const { uuid } = (await response.json()) as { uuid: string };
    await until("the import ends", async () => {
      const operation = (await (await appliance.fetch(`/operations/${uuid}`, { token })).json()) as Body;
      return operation["status"] === "FAILED";
    });
    expect(((await (await appliance.fetch("/images", { token })).json()) as Body[]).length).toBe(0);
  });

  test("of a PENDING import are not kept: after a restart it ends FAILED unavailable", async () => {
    const { image } = (await ended(app(open)))["result"] as { image: string };
    // This run fills the budget, so that the import has to wait.
    const blocker = await appliance.spawn({ image, command: "sleep", args: ["300"], resources: { vcpus: CPU_BUDGET } });
    const statusOf = async (id: string) => (await operationOf(appliance, id))["status"];
    await until("the budget is taken", async () => (await statusOf(blocker)) === "EXECUTING");
    const waiting = await appliance.submitImport(app(closed), { credentials: CREDENTIALS });
    expect(await statusOf(waiting)).toBe("PENDING");
    await appliance.down("SIGKILL");
    expect(await filesWithPassword()).toBe("");
    await appliance.up();
    const operation = (await appliance.finished(waiting)) as unknown as Ended;
    expect(operation).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    expect(operation.error["message"]).toContain("credentials");
  });
});

describe("registries.hosts of the configuration", () => {
  test("ca_file: a registry with a certificate of its own authority; without it, it is not trusted", async () => {
    const trusted = await ended(app(secured), { credentials: CREDENTIALS });
    expect(trusted.status).toBe("SUCCESS");
    const other = app(secured).replace("127.0.0.1", "localhost");
    const untrusted = await ended(other, { credentials: CREDENTIALS });
    expect(untrusted).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    expect(untrusted.error["message"]).toContain("ca_file");
  });

  test("insecure: plain HTTP is spoken only where the operator says so", async () => {
    expect((await ended(app(open))).status).toBe("SUCCESS");
    const plain = await ended(app(open).replace("127.0.0.1", "localhost"));
    expect(plain).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    expect(plain.error["message"]).toContain("plain HTTP");
  });

  test("allow = false, and loopback, link-local and metadata addresses that are not listed, are forbidden", async () => {
    for (const host of ["denied.example", "127.0.0.2:5000", "localhost:1", "169.254.169.254", "0.0.0.0:5000"]) {
      const operation = await ended(`${host}/a/b:1`);
      expect([host, operation.status, operation.error["error"]]).toEqual([host, "FAILED", "forbidden"]);
    }
  });
});

describe("a registry that redirects its clients", () => {
  test("is followed to listed hosts, and to no other service of this machine", async () => {
    using service = bystander();
    await pushImage(open, "team/moved:1", { layers: [[{ path: "marker", content: "moved" }]] });
    const reference = `${redirecting.host}/team/moved:1`;
    redirecting.blobsAt = `http://127.0.0.1:${service.port}`;
    const blobs = await ended(reference);
    redirecting.blobsAt = null;
    redirecting.tokensAt = `http://127.0.0.1:${service.port}/token`;
    const tokens = await ended(reference, { credentials: CREDENTIALS });
    redirecting.tokensAt = null;
    for (const { status, error } of [blobs, tokens]) {
      expect([status, error["error"]]).toEqual(["FAILED", "forbidden"]);
      expect(error["message"]).toContain(`127.0.0.1:${service.port}`);
    }
    expect(service.callers).toBe(0);
    redirecting.blobsAt = `http://${open.host}`;
    expect((await ended(reference)).status).toBe("SUCCESS");
  });
});

describe("a long import", () => {
  const nothingLeft = async (layers: number) => {
    await until("no import directory is left", async () => {
      return (await appliance.leftovers()).every((name) => name.startsWith("vms/"));
    });
    expect((await readdir(join(appliance.dataDir, "layers"))).length).toBe(layers);
    const isTool = ({ argv }: { readonly argv: string }) => argv.startsWith("skopeo");
    await until("no tool is left", async () => !(await processesWith(appliance.dataDir)).some(isTool));
  };
  const fresh = (name: string) => pushImage(open, `${name}:1`, { layers: [[{ path: "marker", content: name }]] });

  // spec: images.import.timeout
  test("ends FAILED when its timeout (in seconds) is over, and leaves nothing behind", async () => {
    await fresh("late");
    const layers = (await readdir(join(appliance.dataDir, "layers"))).length;
    const operation = await ended(`${slow.host}/late:1`, { timeout: 2 });
    expect(operation).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    expect(operation.error["message"]).toContain("timed out after 2 s");
    await nothingLeft(layers);
  });

  // spec: operations.cancel
  test("that is cancelled while it pulls ends CANCELLED, and leaves nothing behind", async () => {
    await fresh("cancelled");
    const layers = (await readdir(join(appliance.dataDir, "layers"))).length;
    const requested = slow.blobWanted();
    const id = await appliance.submitImport(`${slow.host}/cancelled:1`, { tag: "never" });
    await requested;
    expect(await operationOf(appliance, id)).toMatchObject({ status: "EXECUTING" });
    // The registry never sends the rest.
    expect((await appliance.fetch(`/operations/${id}`, { method: "DELETE" })).status).toBe(202);
    expect((await appliance.finished(id)).status).toBe("CANCELLED");
    expect((await appliance.fetch(`/operations/${id}`, { method: "DELETE" })).status).toBe(409);
    expect(await (await appliance.fetch("/images?tag=never")).json()).toEqual([]);
    await nothingLeft(layers);
  });

  test("concurrent imports of one digest, one of them cancelled, give the other its layer", async () => {
    await fresh("shared");
    const requested = slow.blobWanted();
    const ids = await Promise.all([1, 2].map(() => appliance.submitImport(`${slow.host}/shared:1`)));
    await requested;
    await appliance.fetch(`/operations/${ids[0]}`, { method: "DELETE" });
    slow.release();
    const statuses = await Promise.all(ids.map(async (id) => (await appliance.finished(id)).status));
    expect(statuses).toEqual(["CANCELLED", "SUCCESS"]);
  });
});
