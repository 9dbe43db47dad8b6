import { readFileSync } from "node:fs";
import { type TProperties, Type } from "@sinclair/typebox";
import { Value } from "@sinclair/typebox/value";
import type { AccountId, ImageId, LayerId, OperationId } from "../../domain/ids.ts";
import { ISOLATIONS, type Isolation } from "../../domain/operation.ts";
import { PROTOCOL_VERSION } from "../../vm/agent/protocol.ts";
import type { MachineRecord } from "../../vm/vmm.ts";
import type { NetworkRecord } from "../network/instance-network.ts";

/** Changes with the meaning of a record. A record of another format is not read: its machine is ended. */
export const FORMAT_NUMBER = 1;

/** Kinds of operations whose machines outlive the service. */
export const RECORDED_KINDS = ["instance", "sandbox"] as const;

/**
 * A running instance as plain data: from this, the log of its operation, its request and the report of its agent, the next
 * process of the service continues it. What the log has is not repeated.
 */
export interface InstanceRecord {
  readonly format: typeof FORMAT_NUMBER;
  /** of the boot of the host in which the machine runs */
  readonly bootId: string;
  /** version of the service that wrote the record */
  readonly daemon: string;
  /** version of the protocol that the agent speaks */
  readonly protocol: number;
  /** hash of the files with which the machine was started */
  readonly assets: string;
  readonly operationId: OperationId;
  readonly kind: (typeof RECORDED_KINDS)[number];
  readonly accountId: AccountId;
  readonly imageId: ImageId;
  /** the attached layers, the lowest first */
  readonly layers: readonly LayerId[];
  readonly isolation: Isolation;
  readonly hostname: string;
  readonly machine: MachineRecord;
  /** time limit of the command, in `milliseconds`: as it was requested, and from its start */
  readonly limit: { readonly ms: number; readonly fromStartMs: number };
  readonly network: NetworkRecord;
  /** of a copy: number of forks since the first of its machines; absent: its command began in this machine */
  readonly generation?: number | undefined;
  /** true: it continues from kept memory, which is gone */
  readonly resumed?: boolean | undefined;
}

/** Records of networks are the largest part, and have at most a thousand entries. */
export const RECORD_BYTES_MAX = 8_388_608;
/** Fields that later versions add are ignored: they write another format when that would be wrong. */
const object = <Properties extends TProperties>(properties: Properties) => Type.Object(properties);
const text = Type.String({ minLength: 1, maxLength: 4096 });
const count = Type.Integer({ minimum: 0 });
const uuid = Type.String({ pattern: "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$" });
const program = object({ pid: Type.Integer({ minimum: 2 }), startTicks: count });
const head = object({ format: Type.Integer(), bootId: text, protocol: Type.Integer() });
const record = object({
  ...head.properties,
  daemon: text,
  assets: text,
  operationId: uuid,
  kind: Type.Union(RECORDED_KINDS.map((kind) => Type.Literal(kind))),
  accountId: text,
  imageId: uuid,
  layers: Type.Array(uuid, { minItems: 1, maxItems: 1024 }),
  isolation: Type.Union(ISOLATIONS.map((isolation) => Type.Literal(isolation))),
  hostname: text,
  machine: object({
    vmm: Type.Union([Type.Literal("qemu"), Type.Literal("cloud-hypervisor")]),
    version: text,
    acceleration: Type.Union([Type.Literal("kvm"), Type.Literal("tcg")]),
    id: uuid,
    uid: Type.Integer({ minimum: 1 }),
    shape: object({ vcpus: Type.Integer({ minimum: 1 }), memoryBytes: Type.Integer({ minimum: 1 }) }),
    launcher: program,
    monitor: program,
    root: Type.String({ pattern: "^/" }),
    disks: Type.Array(object({ serial: text, node: text }), { minItems: 1, maxItems: 1024 }),
    nextLun: count,
    copiesCount: count,
    templateBytes: count,
    templateId: Type.Optional(text),
  }),
  limit: object({ ms: count, fromStartMs: count }),
  generation: Type.Optional(count),
  resumed: Type.Optional(Type.Boolean()),
  network: object({
    policy: Type.Union([Type.Null(), object({ allow: Type.Array(Type.Unknown()) })]),
    wasOn: Type.Boolean(),
    wasRecorded: Type.Boolean(),
    movedBytes: Type.Integer(),
    audit: object({
      entries: Type.Array(object({ addresses: Type.Array(Type.String()) })),
      isTruncated: Type.Boolean(),
    }),
    policies: object({ periods: Type.Array(object({ since: text }), { minItems: 1 }), changesCount: count }),
  }),
});

/** Id of the host's present boot. */
export function hostBootId(): string {
  return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
}

/** A record that was read, or why its machine cannot be continued. `operationId` is null when even that is unknown. */
export type ReadRecord =
  | { readonly record: InstanceRecord; readonly problem: null }
  | { readonly operationId: OperationId | null; readonly problem: string };

/**
 * Parses the record of a machine that this process may continue.
 * @param text null: there is none
 */
export function parseRecord(text: string | null, bootId: string): ReadRecord {
  if (text === null) return { operationId: null, problem: "its machine has no record" };
  const value = text.length > RECORD_BYTES_MAX ? null : jsonOf(text);
  const operationId = Value.Check(object({ operationId: uuid }), value) ? (value.operationId as OperationId) : null;
  const unless = (problem: string) => ({ operationId, problem });
  if (!Value.Check(head, value)) return unless("the record of its machine cannot be read");
  if (value.format !== FORMAT_NUMBER) return unless("the record of its machine has another format");
  if (value.bootId !== bootId) return unless("its machine is of another boot of the host");
  if (value.protocol !== PROTOCOL_VERSION) {
    return unless(`its agent speaks protocol version ${value.protocol}, and this service ${PROTOCOL_VERSION}`);
  }
  if (!Value.Check(record, value)) return unless("the record of its machine cannot be read");
  return { record: value as unknown as InstanceRecord, problem: null };
}

function jsonOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // The caller reports what is not a record.
    return null;
  }
}

/** The error's message of an instance that ended with a former process of the service, or after it. */
export function interruptedText(reason: string): string {
  return `the service was restarted while the operation ran, and could not continue it: ${reason}`;
}
