import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { ApiError } from "../../../domain/errors.ts";
import type { SandboxId } from "../../../domain/ids.ts";
import { KIND_FACTS } from "../../../domain/operation.ts";
import type { Principal } from "../../../service/parts.ts";
import type { SandboxGoal } from "../../../service/sandboxes/sandboxes.ts";
import { authorize } from "../../auth.ts";
import { about, checked, jsonSpec, OPERATION_LOCATION } from "../../route.ts";
import { requireSignal } from "../../wire-fields.ts";
import { memoryForkOf } from "../forks.ts";
import { CheckpointRequest } from "../schema/instances.ts";
import { AcceptedOperation } from "../schema/operations.ts";
import { SamplesQuery } from "../schema/query.ts";
import {
  ForkRequest,
  MemoryFork,
  PauseRequest,
  ResumeRequest,
  RollbackRequest,
  Sandbox,
  SandboxSample,
  SavedState,
  SettledQuery,
} from "../schema/sandboxes.ts";
import { accepted, type Surface } from "../surface.ts";
import { sampleOf, sandboxOf, savedStateOf } from "./sandbox-wire.ts";

const PAUSE = {
  query: checked(SettledQuery),
  body: checked(PauseRequest),
  ...about({
    id: "pauseSandbox",
    tag: "Sandboxes",
    summary: "Save the files of a running sandbox, and its memory on request, and end its machine",
    responses: { 200: jsonSpec("the sandbox, which is pausing or paused", Sandbox) },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable", "insufficient_storage"],
  }),
};

const RESUME = {
  query: checked(SettledQuery),
  body: checked(ResumeRequest),
  ...about({
    id: "resumeSandbox",
    tag: "Sandboxes",
    summary: "Continue a paused sandbox with its memory if that is kept, or start it from its head",
    responses: { 200: jsonSpec("the sandbox, which is resuming or running", Sandbox) },
    errors: ["not_found", "conflict", "not_resumable", "too_many_requests", "unavailable"],
  }),
};

const ROLLBACK = {
  query: checked(SettledQuery),
  body: checked(RollbackRequest),
  ...about({
    id: "rollbackSandbox",
    tag: "Sandboxes",
    summary: "Give a sandbox the files of an image, in place: its id, name and addresses stay",
    responses: { 200: jsonSpec("the sandbox with its new head", Sandbox) },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
};

const CHECKPOINT = {
  body: checked(CheckpointRequest),
  ...about({
    id: "checkpointSandbox",
    tag: "Sandboxes",
    summary: "Save the files of a running sandbox, which continues; its head moves to the new image",
    responses: { 202: jsonSpec("the checkpoint is queued", AcceptedOperation, OPERATION_LOCATION) },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
};

const FORK = {
  query: checked(SettledQuery),
  body: checked(ForkRequest),
  ...about({
    id: "forkSandbox",
    tag: "Sandboxes",
    summary: "Open sandboxes with the present files of a sandbox, and with its memory on request, all or none",
    responses: {
      201: jsonSpec("the new sandboxes; with memory an object", Type.Union([Type.Array(Sandbox), MemoryFork])),
    },
    errors: ["not_found", "conflict", "too_many_requests", "unavailable"],
  }),
};

const STATES = about({
  id: "listSandboxStates",
  tag: "Sandboxes",
  summary: "List the saved states of a sandbox, the newest first",
  responses: { 200: jsonSpec("the states that are kept", Type.Array(SavedState)) },
  errors: ["not_found"],
});

const METRICS = {
  query: checked(SamplesQuery),
  ...about({
    id: "listSandboxSamples",
    tag: "Sandboxes",
    summary:
      "List the samples of what a running sandbox uses: one every five seconds, of its present life, for up to an hour",
    responses: {
      200: jsonSpec("the samples in the order of time; none when it does not run", Type.Array(SandboxSample)),
    },
    errors: ["not_found"],
  }),
};

const SIGNAL_RULE = "signal needs memory";

interface Wait {
  readonly goal?: SandboxGoal;
  readonly seconds: number;
  readonly signal: AbortSignal;
}

export function sandboxStateRoutes(surface: Surface) {
  const { sandboxes, ingress } = surface.service;
  const waited = async (principal: Principal, id: SandboxId, wait: Wait): Promise<Sandbox> => {
    const { goal = "settled", seconds, signal } = wait;
    const sandbox = await sandboxes.wait(principal, id, { goal, waitMs: seconds * 1000, signal });
    return sandboxOf(sandbox, { memory: sandboxes.memoryOf(sandbox), pattern: ingress.patternOf(id) });
  };
  return new Elysia({ prefix: "/sandboxes/:sandbox" })
    .use(surface.access)
    .post(
      "/pause",
      async ({ request, principal, params, query: { wait = 0 }, body: { memory } }) => {
        const id = sandboxes.find(principal, params.sandbox);
        await sandboxes.pause(principal, id, { memory });
        return await waited(principal, id, { seconds: wait, signal: request.signal });
      },
      { takes: { scope: "instances:spawn", waitsForGuest: true, mayBeEmpty: true }, ...PAUSE },
    )
    .post(
      "/resume",
      async ({ request, principal, params, query: { wait = 0 }, body: { memory } }) => {
        const id = sandboxes.find(principal, params.sandbox);
        await sandboxes.resume(principal, id, { memory });
        return await waited(principal, id, { seconds: wait, signal: request.signal });
      },
      { takes: { scope: "instances:spawn", waitsForGuest: true, mayBeEmpty: true }, ...RESUME },
    )
    .post(
      "/rollback",
      async ({ request, principal, params, query: { wait = 0 }, body: { image = "HEAD", keep = false, tag } }) => {
        if (tag !== undefined) authorize(principal, "images:tag");
        const id = sandboxes.find(principal, params.sandbox);
        const isRunning = sandboxes.get(principal, id).state === "running";
        await sandboxes.rollback(principal, id, { image, keep, tag });
        const goal = isRunning ? "running" : "settled";
        return await waited(principal, id, { goal, seconds: wait, signal: request.signal });
      },
      { takes: { scope: "instances:spawn", waitsForGuest: true }, ...ROLLBACK },
    )
    .post(
      "/checkpoint",
      async ({ request, principal, params, body: { tag, timeout } }) => {
        if (tag !== undefined) authorize(principal, "images:tag");
        const id = sandboxes.find(principal, params.sandbox);
        const checkpoint = { tag, timeoutSeconds: timeout };
        return accepted(surface, request, 202, await sandboxes.checkpoint(principal, id, checkpoint));
      },
      { takes: { scope: KIND_FACTS.checkpoint.scope }, ...CHECKPOINT },
    )
    .post(
      "/fork",
      async ({ request, principal, params, query: { wait = 0 }, body, status }) => {
        const { signal } = request;
        const { count = 1, name, memory = false } = body;
        const id = sandboxes.find(principal, params.sandbox);
        const all = (ids: readonly SandboxId[]) =>
          Promise.all(ids.map((forkId) => waited(principal, forkId, { seconds: wait, signal })));
        if (!memory) {
          if (body.signal !== undefined) throw new ApiError("validation_error", SIGNAL_RULE, { field: "signal" });
          return status(201, await all(await sandboxes.fork(principal, id, { count, name, signal })));
        }
        const guestSignal = body.signal === undefined ? undefined : requireSignal(body.signal);
        const forked = await sandboxes.forkMemory(principal, id, { count, name, signal, guestSignal });
        return status(201, { ...memoryForkOf(forked), sandboxes: await all(forked.ids) });
      },
      { takes: { scope: "instances:spawn", waitsForGuest: true }, ...FORK },
    )
    .get(
      "/states",
      ({ principal, params }) =>
        sandboxes.states(principal, sandboxes.find(principal, params.sandbox)).map(savedStateOf),
      { reads: "instances:read", ...STATES },
    )
    .get(
      "/metrics",
      ({ principal, params, query }) =>
        sandboxes.samples(principal, sandboxes.find(principal, params.sandbox), query).map(sampleOf),
      { reads: "instances:read", ...METRICS },
    );
}
