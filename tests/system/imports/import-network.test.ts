import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ScratchDirectory, scratchDirectory } from "../../../src/system/scratch.ts";
import { Appliance } from "../../support/appliance/appliance.ts";
import { type ImageSpec, pushImage } from "../../support/images/images.ts";
import { Registry } from "../../support/images/registry.ts";
import { type SlowRegistry, slowRegistry } from "../../support/images/slow-registry.ts";
import { httpProxy } from "../../support/network/proxies.ts";
import type { Body } from "../../support/runs.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(120_000);

const IMAGE: ImageSpec = { layers: [[{ path: "marker", content: "m" }]] };
let registry: Registry;
let slow: SlowRegistry;
let scratch: ScratchDirectory;
beforeAll(async () => {
  registry = await Registry.start();
  slow = slowRegistry(registry.host);
  scratch = await scratchDirectory(tmpdir(), "coppice-import-network-");
  await pushImage(registry, "team/app:1", IMAGE);
});
afterAll(async () => {
  for (const owned of [slow, registry, scratch]) await owned[Symbol.asyncDispose]();
});

interface Ended extends Body {
  readonly status: string;
  readonly error: Body;
}

async function ended(appliance: Appliance, reference: string): Promise<Ended> {
  return (await appliance.finished(await appliance.submitImport(reference))) as unknown as Ended;
}

/** The launchers of connecting processes of a daemon. */
function gatesOf(daemon: number): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        const [program = "", mode, ...rest] = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
        return program.endsWith("/launch") && mode === "gate" && rest[rest.indexOf("--parent") + 1] === `${daemon}`;
      } catch (error) {
        // The process has ended.
        expect(["ENOENT", "ESRCH"]).toContain((error as NodeJS.ErrnoException).code ?? "");
        return false;
      }
    })
    .map(Number);
}

describe("an import behind the site's proxy", () => {
  const port = () => registry.host.replace(/.*:/, "");

  test("connects through it, with its credentials, to names that only the proxy knows", async () => {
    await using proxy = await httpProxy();
    const credentials = join(scratch.path, "credentials");
    await writeFile(credentials, "alice:s3cret pass\n", { mode: 0o600 });
    await using appliance = await Appliance.start({
      registries: [`registry.example:${port()}`],
      flags: ["--network-proxy", `http://127.0.0.1:${proxy.port}`, "--network-proxy-credentials-file", credentials],
    });
    const host = `registry.example:${port()}`;
    expect((await ended(appliance, `${host}/team/app:1`)).status).toBe("SUCCESS");
    expect(new Set(proxy.asked)).toEqual(new Set([host]));
    expect(appliance.log).not.toContain("s3cret");
    // Addresses of this host are refused without the proxy.
    const here = await ended(appliance, `127.1:${port()}/team/app:1`);
    expect(here).toMatchObject({ status: "FAILED", error: { error: "forbidden" } });
    expect(new Set(proxy.asked)).toEqual(new Set([host]));
  });

  test("with wrong credentials says so, and does not repeat them", async () => {
    await using proxy = await httpProxy();
    const credentials = join(scratch.path, "wrong");
    await writeFile(credentials, "alice:wr0ng-canary\n", { mode: 0o600 });
    await using appliance = await Appliance.start({
      flags: ["--network-proxy", `http://127.0.0.1:${proxy.port}`, "--network-proxy-credentials-file", credentials],
    });
    const operation = await ended(appliance, "registry.example/team/app:1");
    expect(operation).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    const message =
      "the registry registry.example cannot be reached: the site's proxy does not accept the credentials (407)";
    expect(operation.error["message"]).toBe(message);
    expect(JSON.stringify(operation) + appliance.log).not.toContain("wr0ng-canary");
  });
});

describe("the connecting process of an appliance", () => {
  test("that is killed in the middle of an import fails that import, and the next one works", async () => {
    await using appliance = await Appliance.start({ registries: [registry.host, slow.host] });
    const { pid } = appliance;
    expect(gatesOf(pid)).toEqual([]);
    const requested = slow.blobWanted();
    const torn = await appliance.submitImport(`${slow.host}/team/app:1`);
    await requested;
    const [gate = 0, ...others] = gatesOf(pid);
    expect(others).toEqual([]);
    process.kill(gate, "SIGKILL");
    const operation = (await appliance.finished(torn)) as unknown as Ended;
    expect(operation).toMatchObject({ status: "FAILED", error: { error: "unavailable" } });
    expect((await ended(appliance, `${registry.host}/team/app:1`)).status).toBe("SUCCESS");
    expect(gatesOf(pid)).not.toContain(gate);
    expect(appliance.log).toContain("the connecting process has ended");
  });

  test("ends with the daemon, even when that is killed", async () => {
    await using appliance = await Appliance.start({ registries: [registry.host] });
    const { pid } = appliance;
    expect((await ended(appliance, `${registry.host}/team/app:1`)).status).toBe("SUCCESS");
    expect(gatesOf(pid)).toHaveLength(1);
    await appliance.down("SIGKILL");
    await until("it is gone", () => gatesOf(pid).length === 0);
    await appliance.up();
    expect((await ended(appliance, `${registry.host}/team/app:1`)).status).toBe("SUCCESS");
    expect(await readdirSync(join(appliance.dataDir, "runtime/gate"))).toHaveLength(1);
  });
});
