import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { LAYERS_COUNT_MAX } from "../../../src/vm/agent/protocol.ts";
import {
  buildCloudHypervisorArgs,
  buildDiskConfig,
  buildVmConfig,
  DISKS_COUNT_MAX,
  RESTORE_CONFIG,
  SNAPSHOT_URL,
} from "../../../src/vm/cloud-hypervisor/config.ts";
import { CloudHypervisorEventDecoder, CloudHypervisorEventError } from "../../../src/vm/cloud-hypervisor/events.ts";
import {
  CloudHypervisorVersionError,
  parseCloudHypervisorVersion,
  requireCloudHypervisorVersion,
} from "../../../src/vm/cloud-hypervisor/version.ts";
import { parseVcpuTime } from "../../../src/vm/vcpu-time.ts";
import { ApiDescription } from "../../support/cloud-hypervisor/description.ts";

const SHAPE = { vcpus: 2, memoryBytes: 536_870_912 };

describe("the command line", () => {
  test("has descriptors, but no path of the host", () => {
    expect(buildCloudHypervisorArgs("/usr/bin/cloud-hypervisor", { api: 3, events: 4 })).toEqual([
      "/usr/bin/cloud-hypervisor",
      ...["--api-socket", "fd=3"],
      ...["--event-monitor", "fd=4"],
      ...["--seccomp", "true"],
      "--no-shutdown",
    ]);
  });
});

describe("a machine", () => {
  test("is the same for every guest of a shape, and has only paths of its jail", () => {
    expect(buildVmConfig(SHAPE, true)).toEqual({
      cpus: { boot_vcpus: 2, max_vcpus: 2, nested: false },
      memory: { size: 536_870_912 },
      payload: {
        kernel: "/vm/vmlinux",
        initramfs: "/vm/initramfs",
        cmdline: "quiet panic=1 cryptomgr.notests console=ttyS0 -- vsock",
      },
      rng: { src: "/dev/urandom" },
      serial: { mode: "Socket", socket: "/vm/run/console.sock" },
      console: { mode: "Off" },
      vsock: { cid: 3, socket: "/vm/run/vsock.sock", id: "agent" },
      pvpanic: true,
      platform: { num_pci_segments: 5 },
      landlock_enable: true,
      landlock_rules: [{ path: "/vm", access: "rw" }],
    });
  });

  test("has no Landlock on a kernel without it", () => {
    const config = buildVmConfig(SHAPE, false);
    expect(config.landlock_enable).toBe(false);
    expect(config).not.toHaveProperty("landlock_rules");
  });

  test("has memory in whole MiB", () => {
    expect(() => buildVmConfig({ vcpus: 1, memoryBytes: 1_000_000_000 }, false)).toThrow("multiple of 1 MiB");
  });
});

describe("a disk", () => {
  test("is raw, has a serial, and allows discards only if it is writable", () => {
    expect(buildDiskConfig("L00", true, 0)).toEqual({
      path: "/vm/L00",
      readonly: true,
      id: "disk-L00",
      serial: "L00",
      pci_segment: 0,
      image_type: "Raw",
      sparse: false,
    });
    expect(buildDiskConfig("S", false, 1)).toMatchObject({ readonly: false, sparse: true });
  });

  test("is added to the first PCI segment with a free device", () => {
    const segments = Array.from(
      { length: DISKS_COUNT_MAX },
      (_, index) => buildDiskConfig("L", true, index).pci_segment,
    );
    const counts = [0, 1, 2, 3, 4].map((segment) => segments.filter((each) => each === segment).length);
    // 32 devices per segment: a bridge on each, and three other devices on the first.
    expect(counts).toEqual([28, 31, 31, 31, 31]);
    expect(segments).toEqual(segments.toSorted((a, b) => a - b));
    expect(DISKS_COUNT_MAX).toBeGreaterThan(LAYERS_COUNT_MAX + 1);
    expect(() => buildDiskConfig("L", true, DISKS_COUNT_MAX)).toThrow("no address left");
  });
});

describe("events", () => {
  const event = { timestamp: { secs: 1, nanos: 2 }, source: "vm", event: "booted", properties: null };
  const text = (value: object) => `${JSON.stringify(value, null, 2)}\n\n`;

  test("are decoded one by one, with cuts of the stream at any place", () => {
    const panic = { ...event, source: "guest", event: "panic", properties: { event: "crash_loaded" } };
    const stream = Buffer.from(`${text(event)}\n${text(panic)}`);
    for (let cut = 0; cut <= stream.length; cut++) {
      const decoder = new CloudHypervisorEventDecoder();
      const events = [...decoder.push(stream.subarray(0, cut)), ...decoder.push(stream.subarray(cut))];
      expect(events).toEqual([
        { source: "vm", event: "booted", properties: {} },
        { source: "guest", event: "panic", properties: { event: "crash_loaded" } },
      ]);
    }
  });

  test.each([
    ["not JSON", "{nonsense\n\n"],
    ["no object", "3\n\n"],
    ["null", "null\n\n"],
    ["a source that is not text", text({ ...event, source: 1 })],
    ["a missing name", text({ source: "vm" })],
  ])("that are none are refused: %s", (_, stream) => {
    expect(() => new CloudHypervisorEventDecoder().push(Buffer.from(stream))).toThrow(CloudHypervisorEventError);
  });

  test("have only properties with a text: others need not have one", () => {
    const deep = `${"[".repeat(30_000)}${"]".repeat(30_000)}`;
    const properties = `{"a": {"toString": null}, "b": ${deep}, "c": "x"}`;
    const stream = `{"source": "vm", "event": "booted", "properties": ${properties}}\n\n`;
    const events = new CloudHypervisorEventDecoder().push(Buffer.from(stream));
    expect(events).toEqual([{ source: "vm", event: "booted", properties: { c: "x" } }]);
  });

  test("without an end are refused before they fill the buffer", () => {
    const decoder = new CloudHypervisorEventDecoder();
    const endless = () => {
      for (let sent = 0; sent < 100; sent++) decoder.push(Buffer.alloc(4096, "x"));
    };
    expect(endless).toThrow("too long");
  });

  test("of random bytes are either decoded or refused", () => {
    let seed = 7;
    const random = () => (seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648);
    for (let round = 0; round < 2000; round++) {
      const bytes = Buffer.from(text(event));
      for (let changes = 0; changes < 3; changes++) bytes[random() % bytes.length] = random() % 256;
      try {
        new CloudHypervisorEventDecoder().push(bytes);
      } catch (error) {
        expect(error).toBeInstanceOf(CloudHypervisorEventError);
      }
    }
  });
});

describe("the version", () => {
  test.each([
    ["cloud-hypervisor v53.0\nMigration Protocol Versions: 0\n", "53.0", 53, 0],
    ["cloud-hypervisor v52.1\n", "52.1", 52, 1],
    ["cloud-hypervisor v53.0-246-gae44c2971-dirty\n", "53.0-246-gae44c2971-dirty", 53, 0],
    ["cloud-hypervisor 54.0.0\n", "54.0.0", 54, 0],
  ])("is read from %j", (output, text, major, minor) => {
    expect(parseCloudHypervisorVersion(output)).toEqual({ text, major, minor });
  });

  test.each(["", "cloud-hypervisor\n", "error: no such option\n", "cloud-hypervisor vfifty.two\n"])(
    "cannot be read from %j",
    (output) => {
      expect(() => parseCloudHypervisorVersion(output)).toThrow(CloudHypervisorVersionError);
    },
  );

  test("must be 52 or newer, and the error says where to download it", () => {
    const require = (text: string) => () =>
      requireCloudHypervisorVersion(parseCloudHypervisorVersion(`cloud-hypervisor v${text}\n`), "/usr/bin/x");
    expect(require("52.0")).not.toThrow();
    expect(require("60.0")).not.toThrow();
    expect(require("51.2")).toThrow(
      "Cloud Hypervisor v51.2 (/usr/bin/x) is too old: v52.0 or newer is needed; " +
        "github.com/cloud-hypervisor/cloud-hypervisor/releases has static binaries",
    );
  });
});

test("reads processor time after a process name with any characters", () => {
  const fields = Array.from({ length: 50 }, (_, index) => String(index));
  const stat = `77 (vcpu) 0) R ${fields.slice(1).join(" ")}\n`;
  expect(parseVcpuTime(stat)).toEqual({ kernelMs: 120, guestMs: 400 });
});

/** A small description of the same form, which tests the check where the real one is missing. */
const SMALL = `
paths:
  /vm.restore:
    put:
      requestBody:
        content:
          application/json:
            schema: { $ref: "#/components/schemas/RestoreConfig" }
      responses: { 204: {} }
components:
  schemas:
    Mode: { type: string, enum: [Copy, OnDemand] }
    RestoreConfig:
      type: object
      required: [source_url]
      properties:
        source_url: { type: string }
        prefault: { type: boolean }
        memory_restore_mode: { $ref: "#/components/schemas/Mode" }
`;
const DESCRIPTION = process.env["COPPICE_TEST_CH_OPENAPI"];

describe("the description of the API", () => {
  const description = new ApiDescription(DESCRIPTION === undefined ? SMALL : readFileSync(DESCRIPTION, "utf8"));

  test.skipIf(DESCRIPTION === undefined)("has each field and spelling sent (needs COPPICE_TEST_CH_OPENAPI)", () => {
    const requests: [string, unknown][] = [
      ["vm.create", buildVmConfig(SHAPE, true)],
      ["vm.create", buildVmConfig(SHAPE, false)],
      ["vm.add-disk", buildDiskConfig("L00", true, 0)],
      ["vm.add-disk", buildDiskConfig("S", false, 100)],
      ["vm.restore", RESTORE_CONFIG],
      ["vm.snapshot", { destination_url: SNAPSHOT_URL }],
      ["vm.remove-device", { id: "disk-L00" }],
      ...["vm.boot", "vm.pause", "vm.resume", "vm.shutdown", "vmm.shutdown"].map((call): [string, unknown] => [
        call,
        undefined,
      ]),
    ];
    for (const [call, body] of requests)
      expect([call, description.checkRequest("PUT", call, body)]).toEqual([call, []]);
    for (const call of ["vmm.ping", "vm.info"]) expect(description.checkRequest("GET", call, undefined)).toEqual([]);
  });

  const check = (body: unknown) => description.checkRequest("PUT", "vm.restore", body).map(({ path }) => path);

  test("rejects unknown fields and spellings", () => {
    const good = { source_url: "file:///x", memory_restore_mode: "OnDemand" };
    expect(check(good)).toEqual([]);
    expect(check({ ...good, memory_restore_mode: "ondemand" })).toEqual([".memory_restore_mode"]);
    expect(check({ ...good, memory_mode: "OnDemand" })).toEqual([".memory_mode"]);
    expect(check({ memory_restore_mode: "Copy" })).toEqual([".source_url"]);
    expect(check({ ...good, prefault: "yes" })).toEqual([".prefault"]);
    expect(check(undefined)).toEqual([""]);
    expect(description.checkRequest("PUT", "vm.copy", {})).toHaveLength(1);
    expect(description.checkRequest("GET", "vm.restore", good)).toHaveLength(1);
  });
});
