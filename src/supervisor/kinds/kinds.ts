import type { OperationKind } from "../../domain/operation.ts";
import { atWork, type Kind, type KindAtWork } from "../operations/kind.ts";
import { checkpointKind } from "./checkpoint.ts";
import { importKind } from "./image-import.ts";
import { instanceKind } from "./instance.ts";
import { sandboxKind } from "./sandbox.ts";

/** All kinds of operations. */
export const KINDS = {
  image_import: importKind,
  instance: instanceKind,
  checkpoint: checkpointKind,
  sandbox: sandboxKind,
} satisfies Record<OperationKind, Kind<never, unknown, object, never>>;

type AnyKind = (typeof KINDS)[OperationKind];

/** The request of an operation, as clients can read it. */
export type KeptRequest = ReturnType<AnyKind["kept"]>;

type Taking<One> = One extends AnyKind ? (tools: Parameters<One["worker"]>[0]) => void : never;
/** Dependencies of the workers of all kinds. */
export type KindTools = Taking<AnyKind> extends (tools: infer All) => void ? All : never;

/** The kinds with their workers. */
export function kindsAtWork(tools: KindTools): KindAtWork[] {
  return Object.values(KINDS).map((kind: Kind<never, unknown, object, KindTools>) => atWork(kind, tools));
}
