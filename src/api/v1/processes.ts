import { Type } from "@sinclair/typebox";
import { Elysia } from "elysia";
import { given } from "../../domain/given.ts";
import { isoTime, type OperationId } from "../../domain/ids.ts";
import { decodeContent } from "../../domain/tree/content.ts";
import { LIMIT_DEFAULT } from "../../domain/tree/listing.ts";
import type { Process as StoredProcess } from "../../service/running/processes.ts";
import type { ProcessName } from "../../service/running/running.ts";
import { bodyStream } from "../body/body.ts";
import { SentOutputs } from "../output/sent-outputs.ts";
import { empty, json, respond } from "../reply.ts";
import { about, checked, jsonSpec } from "../route.ts";
import { PROCESS_BODY_BYTES_MAX, requireSignal, SIGNAL_DEFAULT, SignalQuery } from "../wire-fields.ts";
import { commandOf, terminalOf } from "./command-wire.ts";
import { PtySize } from "./schema/instances.ts";
import { Process, ProcessDetails, ProcessRequest, StartedProcess, StdinRequest } from "./schema/processes.ts";
import { ProcessesQuery, StdinQuery } from "./schema/query.ts";
import { sentOutput } from "./sent-output.ts";
import type { Surface } from "./surface.ts";

const SCOPE = "instances:exec";
const NS_PER_MS = 1_000_000n;

const START = {
  body: checked(ProcessRequest),
  ...about({
    id: "startProcess",
    tag: "Processes",
    summary: "Run an additional process in a running instance",
    responses: {
      201: jsonSpec("the process has started", StartedProcess, { Location: "address of the process" }),
    },
    errors: ["not_found", "conflict", "invalid_path", "too_many_requests", "unavailable"],
  }),
};

const LIST = {
  query: checked(ProcessesQuery),
  ...about({
    id: "listProcesses",
    tag: "Processes",
    summary: "List the processes of an instance, including ended ones, in the order of their starts",
    responses: { 200: jsonSpec("a page of processes", Type.Array(Process)) },
    errors: ["not_found", "too_many_requests"],
  }),
};

const GET = {
  ...about({
    id: "getProcess",
    tag: "Processes",
    summary: "Read a process of an instance, with its output so far",
    responses: { 200: jsonSpec("the process", ProcessDetails) },
    errors: ["not_found", "too_many_requests"],
  }),
};

const SIGNAL = {
  query: checked(SignalQuery),
  ...about({
    id: "signalProcess",
    tag: "Processes",
    summary: "Send a signal to the process group of a process",
    responses: { 204: { description: "the signal was sent to the guest" } },
    errors: ["not_found", "conflict", "too_many_requests"],
  }),
};

const STDIN = {
  body: checked(StdinRequest),
  ...about({
    id: "writeStdin",
    tag: "Processes",
    summary: "Write to the standard input of a process; answered when the guest has received the bytes",
    responses: { 204: { description: "the guest has received all bytes" } },
    errors: ["not_found", "conflict", "too_many_requests"],
  }),
};

const STREAM = {
  query: checked(StdinQuery),
  ...about({
    id: "streamStdin",
    tag: "Processes",
    summary: "Stream the body to the standard input of a process, as fast as the process reads",
    responses: { 204: { description: "the guest has received all bytes" } },
    errors: ["not_found", "conflict", "too_many_requests"],
  }),
};

const RESIZE = {
  body: checked(PtySize),
  ...about({
    id: "resizeTerminal",
    tag: "Processes",
    summary: "Set the size of the terminal of a process",
    responses: { 204: { description: "the size was sent to the guest" } },
    errors: ["not_found", "conflict"],
  }),
};

export function processRoutes(surface: Surface) {
  const { processes } = surface.service;
  return new Elysia({ prefix: "/instances/:uuid/processes" })
    .use(surface.access)
    .post(
      "",
      async ({ request, principal, params, body: { timeout, ...command } }) => {
        const process = { ...commandOf(command), timeoutSeconds: timeout };
        const spid = await processes.start(principal, params.uuid as OperationId, process, request.signal);
        const location = `${surface.address}/instances/${params.uuid}/processes/${spid}`;
        return respond(json(201, { spid }, { location }), request) as never;
      },
      { takes: { scope: SCOPE, bytesMax: PROCESS_BODY_BYTES_MAX, waitsForGuest: true }, ...START },
    )
    .get(
      "",
      async ({ request: { signal }, principal, params, query: { limit = LIMIT_DEFAULT, offset = 0 } }) => {
        const id = params.uuid as OperationId;
        return (await processes.list(principal, { id, limit, offset, signal })).map(processOf);
      },
      { reads: SCOPE, ...LIST },
    )
    .get(
      "/:spid",
      async ({ request, principal, params }) => {
        const name = nameOf(params);
        const process = await processes.get(principal, name, request.signal);
        using outputs = new SentOutputs();
        const opened = outputs.hold(await processes.outputs(principal, name.id, process, request.signal));
        const send = async (stream: "stdout" | "stderr") =>
          await sentOutput(outputs, await opened.read(stream), process.outputs[stream].truncated);
        const body = { ...processOf(process), stdout: await send("stdout"), stderr: await send("stderr") };
        return respond(await outputs.reply(body, 200), request) as never;
      },
      { reads: SCOPE, ...GET },
    )
    .delete(
      "/:spid",
      async ({ request, principal, params, query: { signal = SIGNAL_DEFAULT } }) => {
        await processes.signal(principal, nameOf(params), requireSignal(signal));
        return respond(empty(204), request);
      },
      { writes: SCOPE, ...SIGNAL },
    )
    .post(
      "/:spid/stdin",
      async ({ request, principal, params, body: { close = false, ...encoded } }) => {
        const content = [decodeContent(encoded)];
        await processes.write(principal, { ...nameOf(params), content, close, signal: request.signal });
        return respond(empty(204), request);
      },
      { takes: { scope: SCOPE, waitsForGuest: true }, ...STDIN },
    )
    .post(
      "/:spid/stdin/stream",
      async ({ request, server, principal, params, query: { close = false } }) => {
        // The process may read slowly, and the client may have nothing to write for a long time.
        server?.timeout(request, 0);
        const input = { ...nameOf(params), content: bodyStream(request), close, signal: request.signal };
        await processes.write(principal, input);
        return respond(empty(204), request);
      },
      { streams: SCOPE, ...STREAM },
    )
    .patch(
      "/:spid/pty",
      async ({ request, principal, params, body }) => {
        await processes.resize(principal, nameOf(params), terminalOf(body));
        return respond(empty(204), request);
      },
      { takes: { scope: SCOPE }, ...RESIZE },
    );
}

function nameOf({ uuid, spid }: { readonly uuid: string; readonly spid: string }): ProcessName {
  return { id: uuid as OperationId, spid: Number(spid) };
}

function processOf({ spid, state, startedNs, endedNs, spawn, exit }: StoredProcess): Process {
  const { command, args, args_truncated, cwd, uid, gid, pty } = spawn;
  return {
    spid,
    state,
    command,
    args: [...args],
    ...given({ args_truncated }),
    cwd,
    uid,
    gid,
    ...given({ pty }),
    started_at: isoTime(Number(startedNs / NS_PER_MS)),
    ...(endedNs === null ? {} : { ended_at: isoTime(Number(endedNs / NS_PER_MS)) }),
    exit_code: exit?.exit_code ?? null,
    signal: exit?.signal ?? null,
    ...(exit === null ? {} : { timed_out: exit.timed_out, duration_ms: exit.duration_ms }),
    ...(exit?.oom_killed === true ? { oom_killed: true } : {}),
    cpu_time_ms: exit?.cpu_time_ms ?? null,
    memory_bytes: exit?.memory_bytes ?? null,
  };
}
