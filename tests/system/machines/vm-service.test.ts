import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { openCgroupTree } from "../../../src/cgroup/cgroup.ts";
import { silentLog } from "../../../src/log.ts";
import { dataLayout } from "../../../src/storage/layout.ts";
import { openPlatform } from "../../../src/supervisor/machines/open-platform.ts";
import { ScratchDisks } from "../../../src/supervisor/machines/scratch-disks.ts";
import { UidPool } from "../../../src/vm/jail/uid-pool.ts";
import { HeldRoots } from "../../../src/vm/jail/vmm-roots.ts";
import { Pool } from "../../../src/vm/pool.ts";
import { PROBE_MEMO_NAME, type ProbeCandidate, probe } from "../../../src/vm/probe.ts";
import { TemplateStore } from "../../../src/vm/templates.ts";
import type { Acceleration, Vmm } from "../../../src/vm/vmm.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { builtAssets, footprint, openVmHost, shell, TEST_SHAPE, type VmHost } from "../../support/guests/vm.ts";
import { pause, until } from "../../support/waiting.ts";

// On a busy host, an emulated machine takes many times the usual three seconds to boot.
setDefaultTimeout(120_000);
/** Longest probe of one candidate. */
const PROBE_MS_MAX = 60_000;

let host: VmHost;
beforeAll(async () => {
  host = await openVmHost();
});
afterAll(() => host[Symbol.asyncDispose]());

const never = new AbortController().signal;

test("a scratch disk that cannot be made fails nothing else during the start", async () => {
  const missing = join(host.directory, "missing");
  const opening = openPlatform(
    {
      layout: dataLayout(host.directory),
      cgroups: host.cgroups,
      scratchDisks: new ScratchDisks({ templates: missing, temporary: missing }),
      log: silentLog,
      emulation: "never",
      probeTimeoutMs: 15_000,
      uids: new UidPool(900_000_000, 10),
      heldRoots: new HeldRoots(),
      assets: () => Promise.resolve(builtAssets()),
      poolSize: 0,
      templatesMemoryBytes: 0,
      shape: TEST_SHAPE,
      diskBytes: 0,
      diskBytesMax: 0,
    },
    AbortSignal.abort(new Error("the service is stopping")),
  );
  expect(await throwing(opening)).toThrow("the service is stopping");
  // An unhandled rejection would have failed the test by now.
  await pause("it would fail", 100);
});

describe("probe", () => {
  const candidate = (acceleration: Acceleration): ProbeCandidate => ({
    vmm: "qemu",
    acceleration,
    open: () => host.open(acceleration),
  });

  test("finds a working acceleration, and remembers it until something changes", async () => {
    const options = {
      candidates: [candidate("kvm"), candidate("tcg")],
      shape: TEST_SHAPE,
      memoPath: join(host.directory, PROBE_MEMO_NAME),
      assetsHash: "a",
      timeoutMs: PROBE_MS_MAX,
      log: silentLog,
      signal: never,
    };
    const first = await probe(options);
    expect(first.verdict.acceleration).not.toBeNull();
    expect(first.vmm?.acceleration).toBe(first.verdict.acceleration ?? "kvm");
    const kvm = first.verdict.candidates[0];
    // A working KVM ends the probe; a broken one must be detected quickly.
    if (!kvm?.ok) expect(kvm?.reason).not.toBe("");
    if (!kvm?.ok) expect(kvm?.durationMs).toBeLessThan(PROBE_MS_MAX);
    if (first.template === null || first.vmm === null) throw new Error("the trial left no template");
    {
      await using template = first.template;
      await using clone = await first.vmm.clone(template);
      expect(clone.pid).toBeGreaterThan(0);
    }
    const second = await probe(options);
    // The same durations: nothing was tried again.
    expect(second.verdict).toEqual(first.verdict);
    expect(second.template).toBeNull();
    const other = await probe({ ...options, candidates: [candidate("tcg")], assetsHash: "b" });
    expect(other.template).not.toBeNull();
    await other.template?.[Symbol.asyncDispose]();
  });

  test("reports why nothing works, and does not remember that", async () => {
    const memoPath = join(host.directory, "none.json");
    const broken: ProbeCandidate = {
      ...candidate("tcg"),
      open: async () => {
        throw new Error("no such program");
      },
    };
    const { verdict, vmm } = await probe({
      candidates: [broken],
      shape: TEST_SHAPE,
      memoPath,
      assetsHash: "a",
      timeoutMs: PROBE_MS_MAX,
      log: silentLog,
      signal: never,
    });
    expect(vmm).toBeNull();
    expect(verdict).toMatchObject({ acceleration: null, candidates: [{ ok: false, reason: "no such program" }] });
    expect(existsSync(memoPath)).toBe(false);
  });
});

describe("pool", () => {
  async function openPool(change: { vmm?: Vmm; coldBootOnly?: boolean } = {}) {
    const stack = new AsyncDisposableStack();
    const vmm = change.vmm ?? host.vmm;
    const templates = stack.use(new TemplateStore({ vmm, log: silentLog }));
    const pool = stack.use(
      new Pool({
        vmm,
        templates,
        shape: TEST_SHAPE,
        size: 2,
        log: silentLog,
        coldBootOnly: change.coldBootOnly ?? false,
      }),
    );
    pool.start();
    await pool.idle();
    return { pool, [Symbol.asyncDispose]: () => stack.disposeAsync() };
  }

  test("returns waiting clones, refills, and leaves nothing behind", async () => {
    const before = footprint(host);
    {
      await using opened = await openPool();
      const { pool } = opened;
      expect(pool.waitingCount).toBe(2);
      const ids = new Set<string>();
      for (let round = 0; round < 3; round++) {
        await using taken = await pool.take(TEST_SHAPE, never);
        expect(taken.isolation).toBe("vm-emulated");
        ids.add(taken.machine.id);
        await taken.machine.attach(await host.disks(taken.machine));
        await taken.agent.mount({ layers: 1, scratch: true });
        expect((await shell(taken.agent, "echo $((6 * 7))")).stdout).toBe("42\n");
        await until("two machines wait", () => pool.waitingCount === 2);
      }
      expect(ids.size).toBe(3);
    }
    expect(footprint(host)).toEqual(before);
    expect(await host.cgroups.list()).toEqual([]);
  });

  test("never returns a machine that died while it waited", async () => {
    await using opened = await openPool();
    const { pool } = opened;
    const waiting = (await host.cgroups.list()).map((name) => host.cgroups.open(name));
    expect(waiting.length).toBe(2);
    for (const group of waiting) await group.kill();
    await using taken = await pool.take(TEST_SHAPE, never);
    await taken.agent.sync({ realtimeNs: BigInt(Date.now()) * 1_000_000n, entropy: new Uint8Array(32) });
    await until("two machines wait", () => pool.waitingCount === 2);
  });

  test("boots from cold when machines cannot be cloned", async () => {
    const vmm = Object.create(host.vmm, {
      clone: { value: async () => Promise.reject(new Error("no clones today")) },
      save: { value: (machine: Parameters<Vmm["save"]>[0]) => host.vmm.save(machine) },
      boot: { value: (shape: Parameters<Vmm["boot"]>[0]) => host.vmm.boot(shape) },
      bootForTemplate: { value: (shape: Parameters<Vmm["boot"]>[0]) => host.vmm.bootForTemplate(shape) },
      acceleration: { value: "tcg" },
    }) as Vmm;
    const templates = new TemplateStore({ vmm, log: silentLog });
    await using _templates = templates;
    await using pool = new Pool({ vmm, templates, shape: TEST_SHAPE, size: 0, log: silentLog });
    await using taken = await pool.take(TEST_SHAPE, never);
    await taken.machine.attach(await host.disks(taken.machine));
    await taken.agent.mount({ layers: 1, scratch: true });
    expect((await shell(taken.agent, "echo cold")).stdout).toBe("cold\n");
  });

  test("boots every machine from cold when configured to", async () => {
    await using opened = await openPool({ coldBootOnly: true });
    expect(opened.pool.waitingCount).toBe(0);
    await using taken = await opened.pool.take(TEST_SHAPE, never);
    await taken.machine.attach(await host.disks(taken.machine));
    await taken.agent.mount({ layers: 1, scratch: true });
    expect((await shell(taken.agent, "echo cold")).stdout).toBe("cold\n");
  });

  test("a caller that gives up gets no machine, and none is left", async () => {
    await using opened = await openPool({ coldBootOnly: true });
    const reason = new Error("enough");
    const given = new AbortController();
    const machine = opened.pool.take(TEST_SHAPE, given.signal);
    await until("a machine is started", async () => (await host.cgroups.list()).length > 0);
    given.abort(reason);
    expect(await failureOf(machine)).toBe(reason);
    expect(await host.cgroups.list()).toEqual([]);
  });
});

test("machines die with their daemon, even when it is killed, and its leftovers are found", async () => {
  const directory = join(host.directory, "killed");
  const namespace = `${host.namespace}-killed`;
  const script = join(import.meta.dir, "../../support/appliance/vm-daemon.ts");
  const daemon = Bun.spawn([process.execPath, script, directory, namespace], { stdout: "pipe", stderr: "inherit" });
  const reader = daemon.stdout.getReader();
  const { value } = await reader.read();
  const pids = Buffer.from(value ?? new Uint8Array())
    .toString()
    .trim()
    .split(" ")
    .map(Number);
  expect(pids.length).toBe(2);
  const runs = (pid: number) => {
    try {
      return !/^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
    } catch (error) {
      // ENOENT and ESRCH: the process is dead.
      if (["ENOENT", "ESRCH"].includes((error as NodeJS.ErrnoException).code ?? "")) return false;
      throw error;
    }
  };
  expect(pids.map(runs)).toEqual([true, true]);
  daemon.kill("SIGKILL");
  await daemon.exited;
  await until("all of them are dead", () => !pids.some(runs));
  await using tree = await openCgroupTree({ namespace });
  const left = await tree.list();
  expect(left.length).toBe(1);
  expect(readdirSync(join(directory, "vms"))).toEqual(left);
  for (const name of left) await tree.open(name)[Symbol.asyncDispose]();
  expect(await tree.list()).toEqual([]);
});
