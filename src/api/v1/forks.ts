import { Elysia } from "elysia";
import type { OperationId } from "../../domain/ids.ts";
import { MEMORY_FORK_WARNING } from "../../domain/memory-fork.ts";
import { KIND_FACTS } from "../../domain/operation.ts";
import { about, checked, jsonSpec } from "../route.ts";
import { requireSignal } from "../wire-fields.ts";
import { InstanceFork, InstanceForkRequest } from "./schema/instances.ts";
import type { Surface } from "./surface.ts";

const FORK = {
  body: checked(InstanceForkRequest),
  ...about({
    id: "forkInstance",
    tag: "Instances",
    summary: "Copy a running instance with its processes, memory and files, all copies or none; it continues to run",
    responses: { 201: jsonSpec("the copies; the uuid of each is the id of its operation", InstanceFork) },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
};

export function forkRoutes(surface: Surface) {
  return new Elysia({ prefix: "/instances" }).use(surface.access).post(
    "/:uuid/fork",
    async ({ request, principal, params, body, status }) => {
      const { count = 1, signal, timeout, disposable, stdin_open } = body;
      const forked = await surface.service.instances.fork(principal, params.uuid as OperationId, {
        ...{ count, timeoutSeconds: timeout, disposable, stdinOpen: stdin_open, abandoned: request.signal },
        signal: signal === undefined ? undefined : requireSignal(signal),
      });
      return status(201, {
        ...memoryForkOf(forked),
        instances: forked.ids.map((uuid, at) => ({ uuid, index: at + 1 })),
      });
    },
    { takes: { scope: KIND_FACTS.instance.scope, waitsForGuest: true }, ...FORK },
  );
}

/** The fields of a fork with memory that do not depend on what was forked. */
export function memoryForkOf({ pausedMs, copiedBytes }: { readonly pausedMs: number; readonly copiedBytes: number }) {
  return { paused_ms: Math.round(pausedMs * 10) / 10, copied_bytes: copiedBytes, warning: MEMORY_FORK_WARNING };
}
