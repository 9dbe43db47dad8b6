import { insertRecord } from "../../db/e2b/records.ts";
import { requireSandbox } from "../../db/sandboxes/rows.ts";
import type { SandboxId } from "../../domain/ids.ts";
import { generatedName } from "../../domain/sandbox.ts";
import { copyOf } from "../../supervisor/sandboxes/fork.ts";
import { type Changed, change } from "../change.ts";
import type { Principal, ServiceParts } from "../parts.ts";
import { checkSettings } from "../sandboxes/checks.ts";
import { endQuietly, firstLife, startingSeconds } from "./open.ts";
import { permittedNetwork, type Recorded, recordOf } from "./records.ts";

export interface ForkRequest {
  readonly count: number;
  /** life of each fork once it runs */
  readonly timeoutSeconds: number;
  /** variables of a fork in place of those of the sandbox */
  readonly env: (id: SandboxId) => Readonly<Record<string, string>>;
  /** the client has left: nothing is left of forks that it does not know */
  readonly signal: AbortSignal;
}

/** A fork, or the reason why there is none. */
export type Forked = { readonly recorded: Recorded } | { readonly error: unknown };

/** As `E2bUseCases.fork`. */
export async function fork(
  parts: ServiceParts,
  principal: Principal,
  id: SandboxId,
  { count, timeoutSeconds, env, signal }: ForkRequest,
): Promise<Changed<readonly Forked[]>> {
  const { db, sandboxes, keys, limits } = parts;
  const { accountId } = principal;
  checkSettings(principal, { timeoutSeconds }, limits);
  return await change(parts, principal, { noun: "record", verb: "fork", id }, async () => {
    const imageId = await sandboxes.presentImage(accountId, id, signal);
    const source = requireSandbox(db, accountId, id);
    const { id: keyId } = await keys.signing();
    const { autoPause: _pause, autoResume: _resume, startedAt: _start, ...record } = recordOf(db, source);
    const network = permittedNetwork(principal, record.network);
    const begin = async (): Promise<SandboxId> => {
      const forkId = Bun.randomUUIDv7() as SandboxId;
      const submission = {
        ...copyOf(source, imageId, generatedName()),
        env: { ...source.env, ...env(forkId) },
        timeoutSeconds: startingSeconds(timeoutSeconds, limits),
      };
      const values = { ...record, network, sandboxId: forkId, keyId, timeoutSeconds, pausedFilesOnly: false };
      await sandboxes.create(accountId, submission, {
        id: forkId,
        parentId: id,
        inserted: () => insertRecord(db, values),
      });
      return forkId;
    };
    const forks: Promise<Forked>[] = [];
    for (let number = 0; number < count; number++) {
      const begun = await begin().catch((error: unknown) => ({ error }));
      const life = { timeoutSeconds, signal };
      forks.push(
        typeof begun === "object" ? Promise.resolve(begun) : started(parts, principal, { ...life, id: begun }),
      );
    }
    return await Promise.all(forks);
  });
}

/** Nothing is left of a fork that fails. */
async function started(
  parts: ServiceParts,
  principal: Principal,
  begun: Parameters<typeof firstLife>[2],
): Promise<Forked> {
  try {
    const recorded = await firstLife(parts, principal, begun);
    begun.signal.throwIfAborted();
    return { recorded };
  } catch (error) {
    await endQuietly(parts, principal, begun.id);
    return { error };
  }
}
