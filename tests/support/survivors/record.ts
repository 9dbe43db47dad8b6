import type { AccountId, ImageId, LayerId, OperationId } from "../../../src/domain/ids.ts";
import { PolicyHistory } from "../../../src/supervisor/network/policies.ts";
import { FORMAT_NUMBER, type InstanceRecord } from "../../../src/supervisor/survivors/instance-record.ts";
import { PROTOCOL_VERSION } from "../../../src/vm/agent/protocol.ts";

/** Id of a boot in which recorded machines run. */
export const BOOT_ID = "11111111-2222-4333-8444-555555555555";

/** The record of a machine of QEMU that runs `true` on an image of one layer. */
export function instanceRecord(change: Partial<InstanceRecord> = {}): InstanceRecord {
  return {
    format: FORMAT_NUMBER,
    bootId: BOOT_ID,
    daemon: "1.2.3",
    protocol: PROTOCOL_VERSION,
    assets: "hash",
    operationId: "0197a1d0-5a5e-7000-8000-000000000001" as OperationId,
    kind: "instance",
    accountId: "alice" as AccountId,
    imageId: "0197a1d0-5a5e-7000-8000-000000000002" as ImageId,
    layers: ["0197a1d0-5a5e-7000-8000-000000000003" as LayerId],
    isolation: "vm-emulated",
    hostname: "coppice-1",
    machine: {
      vmm: "qemu",
      version: "7.2.22",
      acceleration: "tcg",
      id: "0197a1d0-5a5e-7000-8000-000000000004",
      uid: 100_000,
      shape: { vcpus: 1, memoryBytes: 268_435_456 },
      launcher: { pid: 1000, startTicks: 5 },
      monitor: { pid: 1001, startTicks: 6 },
      root: "/run/coppice/root",
      disks: [{ serial: "layer0", node: "disk0" }],
      nextLun: 1,
      copiesCount: 0,
      templateBytes: 0,
    },
    limit: { ms: 60_000, fromStartMs: 60_000 },
    network: {
      policy: null,
      wasOn: false,
      wasRecorded: false,
      movedBytes: 0,
      audit: { entries: [], isTruncated: false },
      policies: PolicyHistory.begin(null, 0).record(),
    },
    ...change,
  };
}
