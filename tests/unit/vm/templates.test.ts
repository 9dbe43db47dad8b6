import { describe, expect, test } from "bun:test";
import { silentLog } from "../../../src/log.ts";
import { NoTemplateError, TemplateStore, templateShape } from "../../../src/vm/templates.ts";
import { failureOf, throwing } from "../../support/failures.ts";
import { type FakeTemplate, FakeVmm } from "../../support/guests/fake-vmm.ts";
import { pause, until } from "../../support/waiting.ts";

const MIB = 1_048_576;
const SHAPE = { vcpus: 1, memoryBytes: 256 * MIB };
const DAY_MS = 86_400_000;

test("a shape is rounded up to that of a template", () => {
  expect(templateShape({ vcpus: 3, memoryBytes: 1 })).toEqual({ vcpus: 3, memoryBytes: 128 * MIB });
  expect(templateShape({ vcpus: 1, memoryBytes: 256 * MIB })).toEqual(SHAPE);
  expect(templateShape({ vcpus: 1, memoryBytes: 256 * MIB + 1 }).memoryBytes).toBe(512 * MIB);
});

describe("templates", () => {
  function open(vmm: FakeVmm): TemplateStore {
    return new TemplateStore({ vmm, log: silentLog, clock: () => vmm.now });
  }

  test("are built once for all concurrent callers", async () => {
    const vmm = new FakeVmm();
    await using store = open(vmm);
    const got = await Promise.all([store.get(SHAPE), store.get(SHAPE), store.get(SHAPE)]);
    expect(new Set(got).size).toBe(1);
    expect(vmm.calls).toEqual(["bootForTemplate", "save"]);
    expect(vmm.live.size).toBe(0);
  });

  test("are built again after a failure", async () => {
    const vmm = new FakeVmm();
    vmm.failing.add("bootForTemplate");
    await using store = open(vmm);
    expect(await throwing(store.get(SHAPE))).toThrow("bootForTemplate fails");
    vmm.failing.clear();
    expect((await store.get(SHAPE)).shape).toEqual(SHAPE);
  });

  test("are built again at once after a failure, then after a pause in which no caller waits", async () => {
    const vmm = new FakeVmm();
    vmm.killedAt.push("hello", "sync");
    await using store = open(vmm);
    const boots = () => vmm.calls.filter((call) => call === "bootForTemplate").length;
    expect(await throwing(store.get(SHAPE))).toThrow("killed by signal 9");
    expect(await throwing(store.get(SHAPE))).toThrow("killed by signal 9");
    expect(await throwing(store.get(SHAPE))).toThrow("killed by signal 9");
    expect(boots()).toBe(2);
    expect((await store.get({ vcpus: 2, memoryBytes: 256 * MIB })).shape.vcpus).toBe(2);
    await until("it is built again", async () => (await store.get(SHAPE).catch(() => null)) !== null);
    expect(boots()).toBe(4);
    expect([...vmm.live]).toEqual([]);
  });

  test("are renewed after a day, while the old one stays in use", async () => {
    const vmm = new FakeVmm();
    await using store = open(vmm);
    const old = (await store.get(SHAPE)) as FakeTemplate;
    vmm.now = DAY_MS + 1;
    vmm.failing.add("bootForTemplate");
    expect(await store.get(SHAPE)).toBe(old);
    await until("a new one is begun", () => vmm.calls.length === 3);
    await pause("the new one fails", 5);
    expect(old.disposed).toBe(false);
    vmm.failing.clear();
    vmm.now += 60_000;
    expect(await store.get(SHAPE)).toBe(old);
    await until("the old one is gone", () => old.disposed);
    expect(await store.get(SHAPE)).not.toBe(old);
    expect(vmm.templates.length).toBe(2);
  });

  test("are renewed after an upgrade of the VMM, while the old one stays in use", async () => {
    const vmm = new FakeVmm();
    await using store = open(vmm);
    const old = (await store.get(SHAPE)) as FakeTemplate;
    expect(await store.get(SHAPE)).toBe(old);
    expect(vmm.templates.length).toBe(1);
    vmm.isOutdated = true;
    expect(await store.get(SHAPE)).toBe(old);
    await until("the old one is gone", () => old.disposed);
    expect(await store.get(SHAPE)).toBe(vmm.templates[1] as FakeTemplate);
    await store.get(SHAPE);
    expect(vmm.templates.length).toBe(2);
  });

  test("stay in use when their renewal fails, which is retried after a minute that doubles up to an hour", async () => {
    const vmm = new FakeVmm();
    const warnings: unknown[] = [];
    const log = { ...silentLog, warn: (_: string, fields?: Record<string, unknown>) => void warnings.push(fields) };
    await using store = new TemplateStore({ vmm, log, clock: () => vmm.now });
    const old = await store.get(SHAPE);
    vmm.isOutdated = true;
    vmm.failing.add("bootForTemplate");
    const boots = () => vmm.calls.filter((call) => call === "bootForTemplate").length;
    for (const [failed, minutes] of [1, 2, 4, 8, 16, 32, 60, 60].entries()) {
      expect(await store.get(SHAPE)).toBe(old);
      await until("one more failure is logged", () => warnings.length === failed + 1);
      expect(warnings.at(-1)).toMatchObject({ retry_ms: minutes * 60_000 });
      vmm.now += minutes * 60_000 - 1;
      expect(await store.get(SHAPE)).toBe(old);
      expect(boots()).toBe(failed + 2);
      vmm.now += 1;
    }
    vmm.failing.clear();
    expect(await store.get(SHAPE)).toBe(old);
    await until("the old one is gone", () => (old as FakeTemplate).disposed);
    expect(await store.get(SHAPE)).not.toBe(old);
  });

  test("are limited in number, and the one unused for longest is removed", async () => {
    const vmm = new FakeVmm();
    await using store = open(vmm);
    const shape = (vcpus: number) => ({ vcpus, memoryBytes: 128 * MIB });
    for (let vcpus = 1; vcpus <= 8; vcpus++) await store.get(shape(vcpus));
    await store.get(shape(1));
    await store.get(shape(9));
    await until("one of them is gone", () => vmm.templates.some(({ disposed }) => disposed));
    expect(vmm.templates.filter(({ disposed }) => disposed).map((template) => template.shape.vcpus)).toEqual([2]);
  });

  test("are built one at a time, and callers for other shapes get an error at once", async () => {
    const vmm = new FakeVmm();
    await using store = open(vmm);
    const first = store.get(SHAPE);
    expect(await failureOf(store.get({ ...SHAPE, vcpus: 2 }))).toBeInstanceOf(NoTemplateError);
    await first;
    expect((await store.get({ ...SHAPE, vcpus: 2 })).shape.vcpus).toBe(2);
    vmm.failing.add("bootForTemplate");
    expect(await throwing(store.get({ ...SHAPE, vcpus: 3 }))).toThrow("bootForTemplate fails");
    vmm.failing.clear();
    expect((await store.get({ ...SHAPE, vcpus: 3 })).shape.vcpus).toBe(3);
  });

  test("stay within their memory except the last one, and unused ones are removed", async () => {
    const vmm = new FakeVmm();
    vmm.templateBytes = 40 * MIB;
    await using store = new TemplateStore({ vmm, log: silentLog, memoryBytesMax: 100 * MIB });
    const get = async (vcpus: number) => (await store.get({ ...SHAPE, vcpus })) as FakeTemplate;
    const disposed = () => vmm.templates.filter((template) => template.disposed).map(({ shape }) => shape.vcpus);
    for (let vcpus = 1; vcpus <= 3; vcpus++) (await get(vcpus)).isInUse = vcpus === 1;
    await until("80 MiB are held", () => store.memoryBytes === 80 * MIB);
    expect(disposed()).toEqual([2]);
    await get(4);
    await until("80 MiB are held", () => store.memoryBytes === 80 * MIB);
    expect(disposed()).toEqual([2, 3]);
  });

  test("count as long as machines use them, and no other is built beyond the limit", async () => {
    const vmm = new FakeVmm();
    vmm.templateBytes = 40 * MIB;
    await using store = new TemplateStore({ vmm, log: silentLog, memoryBytesMax: 100 * MIB, clock: () => vmm.now });
    const get = async (vcpus: number) => (await store.get({ ...SHAPE, vcpus })) as FakeTemplate;
    const [first, second] = [await get(1), await get(2)];
    first.isInUse = true;
    second.isInUse = true;
    vmm.now = DAY_MS + 1;
    expect(await get(1)).toBe(first);
    await until("the first is gone", () => first.disposed);
    // It is renewed while a clone still uses the old one.
    expect(store.memoryBytes).toBe(120 * MIB);
    (await get(1)).isInUse = true;
    expect(await get(2)).toBe(second);
    expect(await failureOf(get(3))).toBeInstanceOf(NoTemplateError);
    expect(vmm.templates.length).toBe(3);
    first.isInUse = false;
    expect(store.memoryBytes).toBe(80 * MIB);
    expect((await get(3)).shape.vcpus).toBe(3);
  });

  test("are all removed at disposal, including one that is being built and the first one used", async () => {
    const vmm = new FakeVmm();
    const first = (await vmm.save(await vmm.bootForTemplate(SHAPE))) as FakeTemplate;
    const store = new TemplateStore({ vmm, log: silentLog, first });
    expect(await store.get(SHAPE)).toBe(first);
    const building = store.get({ vcpus: 2, memoryBytes: 128 * MIB });
    await Promise.allSettled([store[Symbol.asyncDispose](), building]);
    expect(vmm.templates.map(({ disposed }) => disposed)).not.toContain(false);
    expect(vmm.live.size).toBe(0);
    expect(await throwing(store.get(SHAPE))).toThrow("no longer needed");
  });
});
